#!/usr/bin/env python3
"""Unpacks what a build needs from LibTorch's wheels: unpack_libtorch.py WHEEL_DIR OUT_DIR --cpu|--cuda|--gpu.
Or makes the folder of a CPU build from one that is there for CUDA: unpack_libtorch.py FROM_DIR OUT_DIR --link-cpu.

OUT_DIR appears whole or not at all. Left out are Python modules; with --cpu and --link-cpu LibTorch's CUDA libraries, and CUDA's compiler
and headers; with --cuda what is only loaded where there is a GPU. --link-cpu copies nothing: its files are hard links.
"""
import os
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


def unpack(wheels: pathlib.Path, out: pathlib.Path, purpose: str) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(out, [name for name in archive.namelist() if is_needed(name, purpose)])
    if purpose != "--cpu":
        finish_compiler(out / "nvidia/cu13")


# Which wheels a folder is made of stands in their .dist-info folders. Those that a CPU build uses are named by CPU_WHEELS.
CPU_WHEELS = ("torch-", "nvidia_cuda_runtime-", "nvidia_cuda_cupti-")


def files_of_wheel(folder: pathlib.Path, record: pathlib.Path) -> list:
    names = [line.rsplit(",", 2)[0].strip('"') for line in record.read_text().splitlines()]
    return [name for name in names if is_needed(name, "--cpu") and (folder / name).is_file()]


def link_cpu(folder: pathlib.Path, out: pathlib.Path) -> None:
    for record in folder.glob("*.dist-info/RECORD"):
        if not record.parent.name.startswith(CPU_WHEELS):
            continue
        for name in files_of_wheel(folder, record):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(folder / name, out / name)
            except OSError:  # a file system without hard links
                shutil.copy2(folder / name, out / name)


def main() -> None:
    source, out, purpose = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if purpose == "--link-cpu":
        link_cpu(source, partial)
    else:
        unpack(source, partial, purpose)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and not file.is_symlink())
    print(f"    {size / 1e6:.0f} MB in {out}")


if __name__ == "__main__":
    main()
