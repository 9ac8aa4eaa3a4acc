"""A build for CPUs uses nothing of LibTorch for CUDA, which may lie beside it: cpu_build.py BUILD_FOLDER TORCH_FOLDER

What it compiled has no file of .deps/libtorch-cuda, no program is linked with one, and the LibTorch that it uses, where
scripts/setup laid it, holds neither CUDA's compiler and headers nor LibTorch's libraries for CUDA.
"""
import pathlib
import re
import subprocess
import sys

OF_CUDA = ".deps/libtorch-cuda"
ONLY_FOR_CUDA = re.compile(r"libtorch_cuda|libc10_cuda|libtorch_nvshmem|/nvidia/.*(/nvcc|/cuda_runtime_api\.h|/nccl\.h|/libnccl\.so.*)$")


def fail(message):
    sys.exit(f"cpu_build: {message}")


def main():
    build, torch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in ("build.ninja", "CMakeCache.txt"):
        if OF_CUDA in (build / name).read_text():
            fail(f"{build / name} names {OF_CUDA}")
    used = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    if "torch/" not in used:
        fail("ninja knows of no header of LibTorch that was read")
    if OF_CUDA in used:
        fail(f"a source includes a file of {OF_CUDA}")
    program = build / "bin/sherd"
    if program.exists():
        libraries = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        if OF_CUDA in libraries or "libtorch_cuda" in libraries:
            fail(f"{program} is linked with CUDA's libraries:\n{libraries}")
    if torch.parent.name == "libtorch" and torch.parent.parent.name == ".deps":
        found = [path for path in torch.parent.rglob("*") if ONLY_FOR_CUDA.search(str(path))]
        if found:
            fail(f"LibTorch for CPUs holds what is for CUDA: {found[0]}")


if __name__ == "__main__":
    main()
