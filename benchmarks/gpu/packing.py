"""A folder with all that a GPU's machine is given: programs and their libraries, stripped, in an archive; models, the day's own script."""
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from running import write

MIB = 2**20
ARCHIVE = "programs.tar.gz"
# Where a build has them, and whether a day on a CPU needs them too.
PROGRAMS = {"bin/sherd": True, "bin/golden_check": False, "bin/gpu_kernels": False, "tests/ops_cuda_test": False,
            "tests/sherd_gpu_test": False}
LIBRARIES = ["lib/libsherd_cuda.so", "lib/libsherd_ops_cuda.so"]
FILES = ["scripts/gpu_day", *(f"benchmarks/gpu/{name}.py" for name in ("jobs", "packing", "page", "peer", "running")),
         "benchmarks/peers/shapes/bloom-560m.json", "recipes/models/llama-3-8b", "recipes/models/stories260k",
         "tests/data/tiny-llama3-hf", "tests/data/tiny-bloom-hf",
         *(f"tests/data/goldens/{name}-hf.safetensors" for name in ("stories260k", "tiny-llama3", "tiny-bloom"))]
# Every system's own, or a GPU's driver's.
EVERYWHERE = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s|cuda))\.so.*")


class PackError(Exception):
    pass


def strip(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", target, source], check=True)


def libraries_of(program):
    """What it loads that is neither LibTorch's, NVIDIA's nor every system's."""
    for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
        found = re.match(r"\s*(\S+) => (/\S+)", line)
        if found and not EVERYWHERE.fullmatch(found[1]) and not re.search(r"/(torch/lib|nvidia|libtorch)/", found[2]) \
                and not found[1].startswith("libsherd"):
            yield Path(found[2]), found[1]


def commit_of(root):
    done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def collect(build, to, device):
    """Programs in to/bin, libraries in to/lib."""
    missing = []
    for name, in_small in PROGRAMS.items():
        if (build / name).exists():
            strip(build / name, to / "bin" / Path(name).name)
            for library, known_as in libraries_of(build / name):
                if not (to / "lib/others" / known_as).exists():
                    strip(library.resolve(), to / "lib/others" / known_as)
        elif device == "cuda" or in_small:
            missing.append(name)
    for name in LIBRARIES:
        if (build / name).exists():
            strip(build / name, to / name)
        elif device == "cuda":
            missing.append(name)
    if missing:
        raise PackError(f"{build} lacks {', '.join(missing)}: cmake --preset cuda -DSHERD_BUILD_TESTS=ON && cmake --build --preset cuda")


def archive(folder, path):
    with tarfile.open(path, "w:gz", compresslevel=6) as file:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                size = one.stat().st_size
                if size > MIB:
                    print(f"{size / MIB:8.1f} MiB  {one.relative_to(folder)}")
                file.add(one, one.relative_to(folder))


def unpack(root):
    """What was packed, once."""
    path = root / ARCHIVE
    if path.exists() and not (root / "bin").exists():
        with tempfile.TemporaryDirectory(dir=root) as beside:
            with tarfile.open(path) as file:
                file.extractall(beside, filter="data")
            for part in Path(beside).iterdir():
                part.rename(root / part.name)


def pack(root, build, to, device, most_mib):
    """Fails where a program is missing that this device needs, or where it is more than may be carried."""
    if to.exists() and not (to / "packed.json").exists():
        raise PackError(f"{to} is no folder that was packed before: name another one")
    shutil.rmtree(to, ignore_errors=True)
    with tempfile.TemporaryDirectory() as programs:
        collect(build, Path(programs), device)
        to.mkdir(parents=True)
        archive(Path(programs), to / ARCHIVE)
    for name in FILES:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy2
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        copy(root / name, to / name)
    total = sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
    write(to / "packed.json", {"commit": commit_of(root), "date": time.strftime("%Y-%m-%d"), "bytes": total})
    print(f"{total / MIB:8.1f} MiB  {to}: {total} bytes, programs and libraries in an archive")
    if total > most_mib * MIB:
        raise PackError(f"{total} bytes are more than the {most_mib:g} MiB that may be carried")
