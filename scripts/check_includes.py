#!/usr/bin/env python3
"""Checks that layers only point down (docs/design/layers.md): each folder includes only what stands below it, no two
headers include each other, and the files of a folder, a header and its source taken as one, include each other in no circle.

Prints every include that breaks the rule as file:line, and exits with 1 if there is one.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/", "gloo/")
# folder -> the folders it may include from (itself always); "torch" allows LibTorch's headers.
ALLOWED = {
    "include/sherd": {"torch"},
    "examples": {"include/sherd", "torch"},
    "launch": {"include/sherd/error.h", "files/file_descriptor.h", "files/hex.h", "files/quiet_thread.h"},
    "files": {"include/sherd/error.h"},
    "net": {"include/sherd/error.h", "files/file_descriptor.h", "files/system_text.h"},
    "safetensors": {"include/sherd/safetensors.h", "include/sherd/error.h", "files", "torch"},
    "ops": {"include/sherd", "torch", "ops/shared", "ops/plain/plain_backend.h", "ops/cpu/cpu_backend.h"},
    "ops/shared": {"include/sherd", "torch", "ops/backend.h", "ops/dropout_mask.h", "ops/low_rank.h", "ops/q8_0.h", "ops/recompute.h"},
    "ops/plain": {"torch", "ops/backend.h", "ops/q8_0.h", "ops/shared"},
    "ops/cpu": {"include/sherd", "torch", "ops/backend.h", "ops/q8_0.h", "ops/rms_gain.h", "ops/shared"},
    "ops/cpu/loops": {"torch", "ops/cpu/kernels.h"},
    "gpu": {"include/sherd/error.h"},
    "ops/cuda": {"include/sherd", "torch", "gpu", "ops/cuda/kernels", "ops/backend.h", "ops/attention_kernel.h", "ops/fused_attention.h", "ops/shared", "ops/plain/plain_backend.h"},
    "ops/cuda/kernels": {"gpu"},
    "text": set(),
    "llm/config": {"include/sherd/error.h"},
    "llm/text": {"include/sherd/error.h", "files", "text", "llm/config"},
    "llm/inputs": {"include/sherd/error.h", "files", "launch/spinning.h", "llm/text", "llm/config"},
    "llm/model": {"include/sherd", "ops", "torch", "llm/inputs/label.h"},
    "llm/families": {"include/sherd", "llm/model", "ops", "torch"},
    "llm/io": {"include/sherd", "files", "llm/families", "llm/model", "ops/q8_0.h", "torch"},
    "llm/adapters": {"include/sherd", "files", "llm/text", "llm/config", "llm/model", "llm/io", "ops/q8_0.h", "torch"},
    "llm/gguf": {"include/sherd", "files", "llm/text", "llm/families", "llm/io", "llm/model", "ops/q8_0.h", "torch"},
    "llm/track": {"include/sherd/error.h", "files", "launch", "net", "llm/config"},
    "llm/runs": {"include/sherd/error.h", "files", "llm/config", "llm/track"},
    "llm/hub": {"include/sherd/error.h", "files", "net"},
    "llm/doctor": {"include/sherd/error.h", "files/control_group.h", "files/wrapped_text.h", "llm/hub/settings.h"},
    "llm/setup": {"include/sherd", "files", "torch", "llm/config", "llm/adapters", "llm/text", "llm/inputs", "llm/model", "llm/families", "llm/io", "llm/track",
                  "llm/runs", "ops/attention_kernel.h", "ops/linear_cross_entropy.h", "ops/q8_0.h", "ops/cpu/isa.h", "ops/cpu/isa_agreement.h"},
    "llm/eval": {"include/sherd", "files", "torch", "llm/config", "llm/adapters", "llm/text", "llm/inputs", "llm/model", "llm/families", "llm/io", "llm/setup"},
    "llm/plan": {"include/sherd", "files", "torch", "llm/config", "llm/inputs", "llm/model", "llm/io", "llm/track", "llm/setup",
                 "ops/as_on_gpus.h", "ops/attention_kernel.h", "ops/documents.h", "ops/fused_attention.h", "ops/linear_cross_entropy.h",
                 "ops/cpu/isa.h", "ops/q8_0.h"},
    "llm/export": {"include/sherd", "files", "torch", "llm/config", "llm/adapters", "llm/text", "llm/inputs", "llm/model", "llm/families", "llm/io", "llm/gguf", "llm/track",
                   "llm/runs", "llm/setup"},
    "llm/train": {"include/sherd", "files", "torch", "llm/config", "llm/adapters", "llm/text", "llm/inputs", "llm/model", "llm/track", "llm/runs", "llm/setup",
                  "llm/eval", "llm/plan", "llm/export", "ops/attention_kernel.h", "ops/plain_use.h"},
    "llm/check": {"include/sherd", "files", "torch", "llm/config", "llm/adapters", "llm/text", "llm/inputs", "llm/model", "llm/io", "llm/track", "llm/setup",
                  "llm/plan", "llm/train"},
    "llm/bench": {"include/sherd", "torch", "llm/inputs", "llm/model", "llm/families", "llm/io", "llm/track", "llm/setup", "llm/plan",
                  "llm/train", "ops"},
}
# The layers of libsherd from the bottom (docs/design/engine.md): each uses itself and those before it.
ENGINE = ("kernels", "storage", "comm", "rendezvous", "unit", "step", "optim", "state", "api")
below = {"include/sherd", "files", "gpu", "launch", "torch"}
for folder in ENGINE:
    below = below | {f"src/{folder}"}
    ALLOWED[f"src/{folder}"] = below
ALLOWED["src/kernels/cuda"] = {"gpu", "include/sherd", "torch", "src/kernels", "src/storage", "src/rendezvous", "src/kernels/cuda/kernels"}
ALLOWED["src/kernels/cuda/kernels"] = {"gpu", "src/kernels"}
# Folders whose files still include each other in circles, by their sources. No folder is added here.
WITH_CIRCLES = {"llm/config", "llm/inputs", "llm/text", "ops", "ops/cpu", "safetensors"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')


def layer_of(path: str) -> str | None:
    """The longest folder of ALLOWED that holds `path`, a path from the root."""
    return max((f for f in ALLOWED if path.startswith(f + "/")), key=len, default=None)


def is_allowed(target: str, layer: str) -> bool:
    """Whether files of `layer` may include `target`: by its layer, or by a part of it that is named by itself."""
    if layer.startswith("src") and target.startswith("src/"):
        return layer_of(target) in ALLOWED[layer]
    return any(target == a or target.startswith(a + "/") for a in ALLOWED[layer])


def target_of(include: str, source: pathlib.Path) -> str:
    """The included file as a path from the root, "torch" for LibTorch's headers, "" for other libraries."""
    if include.startswith(LIBTORCH):
        return "torch"
    if include.startswith("sherd/"):
        return "include/" + include
    if (ROOT / include).is_file():
        return include
    if (ROOT / "src" / include).is_file() and source.is_relative_to(ROOT / "src"):
        return "src/" + include
    beside = source.parent / include
    return str(beside.relative_to(ROOT)) if beside.is_file() else ""


def faults_of(source: pathlib.Path) -> list[str]:
    name = str(source.relative_to(ROOT))
    layer = layer_of(name)
    faults = []
    for number, line in enumerate(source.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        include = match.group(1)
        if include == "torch/torch.h" and layer == "include/sherd":
            faults.append(f"{name}:{number}: torch/torch.h in a public header: include the part that is needed")
        target = target_of(include, source)
        if not target or layer_of(target) == layer:
            continue
        if not is_allowed(target, layer):
            faults.append(f"{name}:{number}: {layer} may not include {include}")
    return faults


def includes_of(sources: set[pathlib.Path]) -> dict[str, list[str]]:
    """Each file with the files of this project that it includes, as paths from the root."""
    includes = {}
    for source in sources:
        found = (INCLUDE.match(line) for line in source.read_text().splitlines())
        includes[str(source.relative_to(ROOT))] = [target_of(m.group(1), source) for m in found if m]
    return includes


def within_folders(includes: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same for a header and its source as one, and for includes within a folder that may have no circles."""
    joined: dict[str, list[str]] = {}
    for name, targets in includes.items():
        folder, stem = name.rsplit(".", 1)[0].rsplit("/", 1)
        if folder not in WITH_CIRCLES:
            others = (target.rsplit(".", 1)[0] for target in targets)
            joined.setdefault(f"{folder}/{stem}", []).extend(
                other for other in others if other.rpartition("/")[0] == folder and other != f"{folder}/{stem}")
    return joined


def circles(includes: dict[str, list[str]]) -> list[str]:
    """What includes itself by way of others, once for each include that closes a circle."""
    faults = []
    done = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            faults.append(" -> ".join(path[path.index(name):] + [name]) + ": a circle of includes")
        elif name not in done:
            for target in includes.get(name, []):
                visit(target, path + [name])
            done.add(name)

    for name in sorted(includes):
        visit(name, [])
    return faults


def main() -> int:
    sources = [p for layer in ALLOWED for p in (ROOT / layer).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    faults = sorted({fault for source in sources if layer_of(str(source.relative_to(ROOT))) for fault in faults_of(source)})
    includes = includes_of(set(sources))
    faults += circles(includes) or circles(within_folders(includes))
    print("\n".join(faults) or f"check_includes: {len(set(sources))} files, every include points down")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
