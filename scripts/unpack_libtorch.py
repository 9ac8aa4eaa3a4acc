#!/usr/bin/env python3
"""Unpacks what a CPU build needs from LibTorch's wheels: unpack_libtorch.py WHEEL_DIR OUT_DIR.

OUT_DIR appears whole or not at all. Left out are Python modules and CUDA libraries.
"""
import pathlib
import shutil
import sys
import zipfile

TORCH_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libgomp")


def is_needed(name: str) -> bool:
    if name.startswith("torch/lib/"):
        return name.removeprefix("torch/lib/").startswith(TORCH_LIBRARIES)
    if name.startswith("nvidia/"):
        return name.endswith((".so.13", ".so.12")) or ".so." in name
    return name.startswith("torch/include/") or ".dist-info/" in name


def main() -> None:
    wheels, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [name for name in archive.namelist() if is_needed(name)])
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"    {size / 1e6:.0f} MB in {out}")


if __name__ == "__main__":
    main()
