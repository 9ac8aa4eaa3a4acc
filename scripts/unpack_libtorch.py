#!/usr/bin/env python3
"""Unpacks what a build needs from LibTorch's wheels: unpack_libtorch.py WHEEL_DIR OUT_DIR --cpu|--cuda|--gpu.

OUT_DIR appears whole or not at all. Left out are Python modules; with --cpu LibTorch's CUDA libraries; with --cuda what is
only loaded where there is a GPU.
"""
import pathlib
import shutil
import sys
import zipfile

CPU_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libgomp")
CUDA_LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_nvshmem.so")
GPU_LIBRARIES = ("libtorch_cuda_linalg.so",)  # which LibTorch loads when it is used


def is_needed(name: str, purpose: str) -> bool:
    if name.startswith("torch/lib/"):
        libraries = CPU_LIBRARIES + (CUDA_LIBRARIES if purpose != "--cpu" else ()) + (GPU_LIBRARIES if purpose == "--gpu" else ())
        return name.removeprefix("torch/lib/").startswith(libraries)
    if name.startswith("nvidia/nccl/lib/"):
        return purpose == "--gpu"  # 218 MB, and --cuda lacks LibTorch's other CUDA libraries too
    if name.startswith("nvidia/"):
        return purpose != "--cpu" or ".so." in name
    return name.startswith("torch/include/") or ".dist-info/" in name


def finish_compiler(toolkit: pathlib.Path) -> None:
    """Makes nvcc's wheels a toolkit: its programs may run, and it finds the runtime in lib64."""
    for program in [*toolkit.glob("bin/*"), *toolkit.glob("nvvm/bin/*")]:
        if program.is_file():
            program.chmod(0o755)
    (toolkit / "lib64").symlink_to("lib")


def main() -> None:
    wheels, out, purpose = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [name for name in archive.namelist() if is_needed(name, purpose)])
    if purpose != "--cpu":
        finish_compiler(partial / "nvidia/cu13")
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and not file.is_symlink())
    print(f"    {size / 1e6:.0f} MB in {out}")


if __name__ == "__main__":
    main()
