"""Builds and packs the folder that a machine with a GPU is given: stripped programs and libraries in an archive, models, this script."""
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import jobs
from running import write

MIB = 2**20
ARCHIVE = "programs.tar.gz"
# Of each program: its path in a build, the target that builds it, and whether a day on a CPU needs it.
PROGRAMS = [("bin/sherd", "sherd_program", True), ("bin/golden_check", "golden_check", False), ("bin/gpu_kernels", "gpu_kernels", False),
            ("tests/ops_cuda_test", "ops_cuda_test", False), ("tests/sherd_gpu_test", "sherd_gpu_test", False),
            ("lib/libsherd_cuda.so", "sherd_cuda", False), ("lib/libsherd_ops_cuda.so", "sherd_ops_cuda", False)]
PRESETS = {"cuda": "cuda", "cpu": "release"}
CPU_TARGETS = ["sherd_program", "golden_check", "gpu_kernels"]
MODELS = {case.config for case in (jobs.BLOOM, jobs.LLAMA, *jobs.QWEN)}
FILES = ["scripts/gpu_day", *(f"benchmarks/gpu/{name}.py" for name in ("jobs", "packing", "page", "peer", "results", "running")),
         "recipes/models/stories260k", "recipes/stories260k-squad.toml", "recipes/data/squad-1000-train.json", "recipes/data/squad-100-heldout.json",
         "tests/data/tiny-llama3-hf", "tests/data/tiny-bloom-hf",
         *(f"tests/data/goldens/{name}-hf.safetensors" for name in ("stories260k", "tiny-llama3", "tiny-bloom"))]
# Libraries of every system or of the GPU's driver.
EVERYWHERE = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s|cuda))\.so.*")


class PackError(Exception):
    pass


class BuildError(Exception):
    pass


def build(root, device):
    """Configures the preset and builds what is packed. Returns the build's folder. Throws BuildError."""
    if shutil.which("cmake") is None:
        raise BuildError("there is no cmake here: scripts/setup installs it")
    preset = PRESETS[device]
    targets = [target for _, target, _ in PROGRAMS] if device == "cuda" else CPU_TARGETS
    for command in (["cmake", "--preset", preset, "-DSHERD_BUILD_TESTS=ON"], ["cmake", "--build", "--preset", preset, "--target", *targets]):
        print("gpu_day:", *command, flush=True)
        if subprocess.run(command, cwd=root).returncode != 0:
            advice = "; scripts/setup --tests --cuda installs what it needs" if device == "cuda" else ""
            raise BuildError(f"{' '.join(command)} failed: its output above says why{advice}")
    return root / "build" / preset


def strip(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", target, source], check=True)


def libraries_of(program):
    """The libraries it loads that neither LibTorch, NVIDIA's wheels nor every system has."""
    for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
        found = re.match(r"\s*(\S+) => (/\S+)", line)
        if found and not EVERYWHERE.fullmatch(found[1]) and not re.search(r"/(torch/lib|nvidia|libtorch)/", found[2]) \
                and not found[1].startswith("libsherd"):
            yield Path(found[2]), found[1]


def commit_of(root):
    done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def collect(build, to, device):
    """Programs into to/bin, libraries into to/lib."""
    missing = []
    for name, _, on_cpu in PROGRAMS:
        if not (build / name).exists():
            if device == "cuda" or on_cpu:
                missing.append(name)
        elif name.startswith("lib/"):
            strip(build / name, to / name)
        else:
            strip(build / name, to / "bin" / Path(name).name)
            for library, known_as in libraries_of(build / name):
                if not (to / "lib/others" / known_as).exists():
                    strip(library.resolve(), to / "lib/others" / known_as)
    if missing:
        raise PackError(f"{build} lacks {', '.join(missing)}: without --build, this command builds them")


def archive(folder, path):
    with tarfile.open(path, "w:gz", compresslevel=6) as file:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                size = one.stat().st_size
                if size > MIB:
                    print(f"{size / MIB:8.1f} MiB  {one.relative_to(folder)}")
                file.add(one, one.relative_to(folder))


def unpack(root):
    """Unpacks the archive, once."""
    path = root / ARCHIVE
    if path.exists() and not (root / "bin").exists():
        with tempfile.TemporaryDirectory(dir=root) as beside:
            with tarfile.open(path) as file:
                file.extractall(beside, filter="data")
            for part in Path(beside).iterdir():
                part.rename(root / part.name)


def pack(root, build, to, device, most_mib):
    """Throws PackError if a program that this device needs is missing, or if the folder becomes too large."""
    if to.exists() and not (to / "packed.json").exists():
        raise PackError(f"{to} is no folder that was packed before: name another one")
    shutil.rmtree(to, ignore_errors=True)
    with tempfile.TemporaryDirectory() as programs:
        collect(build, Path(programs), device)
        to.mkdir(parents=True)
        archive(Path(programs), to / ARCHIVE)
    for name in [*FILES, *sorted(MODELS)]:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy2
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        copy(root / name, to / name)
    total = sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
    write(to / "packed.json", {"commit": commit_of(root), "date": time.strftime("%Y-%m-%d"), "bytes": total})
    print(f"{total / MIB:8.1f} MiB  {to}: {total} bytes, programs and libraries in an archive")
    if total > most_mib * MIB:
        raise PackError(f"{total} bytes are more than the {most_mib:g} MiB that may be carried")
