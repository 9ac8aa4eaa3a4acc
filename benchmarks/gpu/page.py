"""docs/benchmarks/gpu.md and gpu.json, of the results of one GPU day for each kind of GPU."""
import json
import math

import jobs
from running import read, write

BEGIN, END = "<!-- scripts/gpu_day page --write writes what follows -->\n", "<!-- until here -->\n"
# Tokens a second of a whole step of 8192 tokens that products, attention and bytes allow, by the moments' dtype and the tokens of a
# sample: computed from 798 TFLOP/s in bf16, copies of 3.0 (H100) and 4.3 TB/s (H200), and cuDNN's attention.
FLOORS = {"H200": {"fp32 moments": {8192: 12.4e3, 4096: 13.4e3}, "bf16 moments": {8192: 12.7e3}},
          "H100": {"fp32 moments": {8192: 11.85e3, 4096: 12.7e3}, "bf16 moments": {8192: 12.5e3, 4096: 13.5e3}}}
TESTS = ("kernels beside fp64", "engine beside the CPU")
SANITIZED = ("kernels, memcheck", "kernels, racecheck", "engine, memcheck", "engine, racecheck")


def paths(root):
    return root / "docs/benchmarks/gpu.md", root / "docs/benchmarks/gpu.json"


def day_of(folder):
    return {"machine": read(folder / "machine.json"), **{stage: read(folder / f"{stage}.json") for stage in jobs.STAGES}}


def kind_of(day):
    machine = day["machine"]
    return machine.get("gpu", {}).get("name", "CPU") if machine["device"] == "cuda" else "CPU"


def read_days(root):
    path = paths(root)[1]
    return json.loads(path.read_text()) if path.exists() else []


def with_day(days, day):
    """The newest of each kind of GPU."""
    return [*(one for one in days if kind_of(one) != kind_of(day)), day]


def write_days(root, days):
    page, results = paths(root)
    write(results, days)
    head, rest = page.read_text().split(BEGIN)
    page.write_text(head + BEGIN + text_of(days) + END + rest.split(END)[1])


def passed(day, stage):
    return {name: one for name, one in day[stage].items() if one["status"] == "passed"}


def short(kind):
    return next((name for name in FLOORS if name in kind), "")


def rate(record):
    return record["result"]["tokens_per_second"]


# Of measured and planned memory: a GPU's all, on a CPU what a run takes beside the program itself.
def peaks(record):
    result = record["result"]
    if record["about"].get("of", "Sherd") != "Sherd" or "planned_peak_bytes" not in result:
        return None
    own = result["constant_rank_pss_bytes"][0]
    return result["planned_peak_bytes"], (result["peak_rank_pss_bytes"][0] - own if own else result["peak_rank_bytes"][0])


def floor_of(day, about):
    return FLOORS.get(short(kind_of(day)), {}).get(about.get("moments"), {}).get(about.get("sequence")) \
        if about.get("accumulation") == 1 else None


# Each goal: what it says, and what was found of it: (text, whether it was reached), or None where it was not measured.

def tests_pass(day):
    return every(day, TESTS)


def sanitizers_pass(day):
    return every(day, SANITIZED)


def every(day, names):
    found = {name: day["parity"][name]["status"] for name in names if name in day["parity"]}
    if any(status in ("failed", "too long") for status in found.values()):
        return ", ".join(f"{name}: {status}" for name, status in found.items() if status != "passed"), False
    return ("passed", True) if len(found) == len(names) and set(found.values()) == {"passed"} else None


def losses_differ(day):
    losses = {}
    for one in passed(day, "parity").values():
        if "losses_of" in one["about"]:
            losses.setdefault(one["about"]["losses_of"], {})[one["about"]["on"]] = one["result"]["losses"]
    pairs = {model: of for model, of in losses.items() if len(of) == 2}
    if not pairs:
        return None
    worst = {model: max(relative(a, b) for a, b in zip(of["cuda"], of["cpu"], strict=True)) for model, of in pairs.items()}
    return ", ".join(f"{model} {value:.1e}" for model, value in worst.items()), max(worst.values()) <= 1e-3


def relative(found, expected):
    """Infinite where either is no number."""
    return abs(found - expected) / abs(expected) if all(isinstance(one, float) and math.isfinite(one) for one in (found, expected)) \
        else math.inf


def goldens_differ(day):
    worst = {one["about"]["golden"]: max(value for name, value in one["result"].items() if name.endswith("_rel"))
             for one in passed(day, "parity").values() if "golden" in one["about"]}
    return (", ".join(f"{model} {value:.1e}" for model, value in worst.items()), max(worst.values()) <= 1e-4) if worst else None


def share_of_floor(day):
    shares = {one["about"]["mode"]: rate(one) / floor_of(day, one["about"]) for one in passed(day, "rows").values()
              if one["about"].get("sequence") == 8192 and floor_of(day, one["about"])}
    return (", ".join(f"{mode} {100 * share:.0f} %" for mode, share in shares.items()), max(shares.values()) >= 0.85) if shares else None


def short_samples(day):
    found = [one for one in passed(day, "rows").values()
             if one["about"].get("mode") == "all bf16" and one["about"]["sequence"] == 1024 and one["about"]["accumulation"] == 128]
    return (f"{rate(found[0]):.0f} tokens/s", rate(found[0]) >= 13.95e3) if found and short(kind_of(day)) == "H100" else None


def beside_compiled(day):
    found = {one["about"]["of"]: rate(one) for one in passed(day, "peer").values() if one["about"]["shape"] == "BLOOM-560M"}
    if not {"Sherd", "FSDP2 compiled"} <= found.keys():
        return None
    ratio = found["Sherd"] / found["FSDP2 compiled"]
    return f"{ratio:.2f} ×", ratio >= 1.3


def offload_fits(day):
    found = [one for one in day["rows"].values() if one["about"].get("mode") == "offload"]
    if short(kind_of(day)) != "H100" or not found:
        return None
    fits = [one for one in found if one["status"] == "passed"]
    return f"{len(fits)} of {len(found)} rows", bool(fits)


def plan_is_near(day):
    # No plan has the pool of graphs.
    pairs = [peaks(one) for stage in ("rows", "peer") for one in passed(day, stage).values() if "graphs" not in one["about"]]
    off = [abs(measured / planned - 1) for planned, measured in filter(None, pairs)]
    return (f"at most {100 * max(off):.1f} % in {len(off)} rows", max(off) <= 0.05) if off else None


GOALS = {
    "tests of kernels and engine pass": tests_pass,
    "memcheck and racecheck find nothing": sanitizers_pass,
    "goldens in fp32 within 1e-4": goldens_differ,
    "losses of 20 steps in fp32 within 1e-3 of the CPU's": losses_differ,
    "Llama-3-8B, samples of 8192 tokens: 85 % of a step's floor": share_of_floor,
    "Llama-3-8B all in bf16, 4 × 1024 × 128 tokens a step, on an H100: 13,950 tokens/s": short_samples,
    "BLOOM-560M: 1.3 × FSDP2 compiled": beside_compiled,
    "Llama-3-8B with offload on 80 GB": offload_fits,
    "planned memory within 5 % of each row's peak": plan_is_near,
}


def goals(day):
    yield "| goal | found | |\n|---|---|---|"
    for goal, find in GOALS.items():
        found = find(day) if day and day["machine"]["device"] == "cuda" else None
        yield f"| {goal} | {found[0]} | {'reached' if found[1] else '**missed**'} |" if found else f"| {goal} | – | not measured yet |"


def kernels(day):
    for one in passed(day, "kernels").values():
        result = one["result"]
        copy = result["copy_bytes_per_second"]
        yield f"\nBack end `{result['backend']}`; a copy moves {copy * 1e-12:.2f} TB/s."
        yield "\n| kernel | µs | of a copy's bytes a second |\n|---|---|---|"
        for kernel in result["kernels"]:
            yield f"| {kernel['name']} | {1e6 * kernel['seconds']:.1f} | {100 * kernel['share_of_copy']:.0f} % |"
        yield "\n| product | ms | TFLOP/s |\n|---|---|---|"
        for product in result["products"]:
            yield f"| {product['name']} | {1e3 * product['seconds']:.3f} | {product['teraflops_per_second']:.1f} |"


def rows(day):
    if day["rows"]:
        yield "\n| row | tokens/s | of the floor | step s | peak GiB | planned GiB |\n|---|---|---|---|---|---|"
    for name, one in passed(day, "rows").items():
        floor, (planned, measured) = floor_of(day, one["about"]), peaks(one)
        yield (f"| {name}{again(one)} | {rate(one):.0f} | {f'{100 * rate(one) / floor:.0f} %' if floor else '–'} "
               f"| {one['result']['step_seconds']['median']:.3f} | {gib(measured)} | {gib(planned)} |")


def beside(day):
    if day["peer"]:
        yield "\n| beside PyTorch | tokens/s | Sherd is faster by | step s | peak GiB |\n|---|---|---|---|---|"
    ours = {one["about"]["shape"]: rate(one) for one in passed(day, "peer").values() if one["about"]["of"] == "Sherd"}
    for name, one in passed(day, "peer").items():
        ratio = ours.get(one["about"]["shape"], 0) / rate(one)
        yield (f"| {name}{again(one)} | {rate(one):.0f} | {f'{ratio:.2f} ×' if ratio and one['about']['of'] != 'Sherd' else '–'} "
               f"| {one['result']['step_seconds']['median']:.3f} | {gib(one['result']['peak_rank_bytes'][0])} |")


def again(one):
    return ", activations computed again" if "--checkpoint-activations" in one["command"] else ""


def gib(count):
    return f"{count / jobs.GIB:.2f}"


def troubles(day):
    lines = [f"- {name} ({stage}): {one['status']}: {one['reason'].strip().splitlines()[-1][:200] if one['reason'].strip() else ''}"
             for stage in jobs.STAGES for name, one in day[stage].items() if one["status"] != "passed"]
    if lines:
        yield "\nWhat has no figure, and why:\n"
        yield from lines


def title(day):
    machine, gpu = day["machine"], day["machine"].get("gpu", {})
    what = f"{gpu['name']}, driver {gpu['driver_version']}, {float(gpu['memory.total']) / 1024:.0f} GiB" if gpu else \
        "a CPU, in small: that the day goes through; nothing here is a measurement of a GPU"
    return f"\n## {kind_of(day)}\n\n{what}; torch {machine['torch']}; Sherd {machine['packed'].get('commit', 'unknown')}; {machine['date']}.\n"


def text_of(days):
    lines = []
    if not days:
        lines += ["\n**No GPU has been measured yet.**\n", *goals(None)]
    for day in days:
        lines += [title(day), *goals(day), *kernels(day), *rows(day), *beside(day), *troubles(day)]
    return "\n".join(lines) + "\n\n"
