"""Writes docs/benchmarks/gpu.md and gpu.json from the results of one GPU day per kind of GPU."""
import json

import jobs
import results
from results import gib, passed, peaks, rate, step_seconds
from running import read, write

BEGIN, END = "<!-- scripts/gpu_day page --write writes what follows -->\n", "<!-- until here -->\n"
TESTS = ("kernel tests", "engine tests")
SANITIZED = ("kernels, memcheck", "kernels, racecheck")
CPU_LOSS = 3.83  # on held-out questions, after the same training run on a CPU (README)


def paths(root):
    return root / "docs/benchmarks/gpu.md", root / "docs/benchmarks/gpu.json"


def day_of(folder):
    return {"machine": read(folder / "machine.json"), "results": read(folder / "results.json")}


def kind_of(day):
    machine = day["machine"]
    return machine.get("gpu", {}).get("name", "CPU") if machine["device"] == "cuda" else "CPU"


def read_days(root):
    path = paths(root)[1]
    return json.loads(path.read_text()) if path.exists() else []


def with_day(days, day):
    """Keeps the newest day of each kind of GPU."""
    return [*(one for one in days if kind_of(one) != kind_of(day)), day]


def write_days(root, days):
    page, data = paths(root)
    write(data, days)
    head, rest = page.read_text().split(BEGIN)
    page.write_text(head + BEGIN + text_of(days) + END + rest.split(END)[1])


# Goals. Each function returns (text, whether the goal is reached), or None if the day did not measure it.

def every(records, names):
    found = {name: records[name]["status"] for name in names if name in records}
    if any(status in ("failed", "too long") for status in found.values()):
        return ", ".join(f"{name}: {status}" for name, status in found.items() if status != "passed"), False
    return ("passed", True) if len(found) == len(names) and set(found.values()) == {"passed"} else None


def goldens(records):
    worst = {one["about"]["golden"]: results.worst_golden(one["result"])[1] for one in passed(records).values() if "golden" in one["about"]}
    return (by_model(worst), max(worst.values()) <= 1e-4) if worst else None


def losses(records):
    worst = results.losses_differ(records)
    return (by_model(worst), max(worst.values()) <= 1e-3) if worst else None


def by_model(worst):
    return ", ".join(f"{model} {value:.1e}" for model, value in worst.items())


def training_run(records):
    one = passed(records).get("training run")
    if one is None:
        return None
    loss = one["result"]["eval_loss"]
    return f"{one['result']['steps']} steps, held-out loss {loss:.3f}", abs(loss / CPU_LOSS - 1) <= 0.02


def of_case(records, case):
    """Programs that ran a case, with their records."""
    return {one["about"]["of"]: one for one in passed(records).values() if one["about"].get("case") == case}


def at_least(case, goal):
    def find(records):
        ours = of_case(records, case.name).get("Sherd")
        return (f"{rate(ours):,.0f} tokens/s", rate(ours) >= goal) if ours else None
    return find


def beside_fsdp2(models, goal):
    def find(records):
        for case in {one["about"]["case"]: None for one in records.values() if "case" in one["about"]}:
            programs = of_case(records, case)
            peers = {of: rate(one) for of, one in programs.items() if of.startswith("FSDP2")}
            if case.startswith(models) and peers and "Sherd" in programs:
                strongest = max(peers, key=peers.get)
                ratio = rate(programs["Sherd"]) / peers[strongest]
                return f"{ratio:.3f} × {strongest}", ratio >= goal
        return None
    return find


def offload(records):
    """An offloaded optimizer adds the same time to a step of any number of micro-batches: 128 are computed from what was measured."""
    programs = of_case(records, jobs.LLAMA_SHORT.name)
    if not {"Sherd", "Sherd, optimizer on the host"} <= programs.keys():
        return None
    plain, offloaded = step_seconds(programs["Sherd"]), step_seconds(programs["Sherd, optimizer on the host"])
    share = (offloaded - plain) / (plain * 128 / jobs.LLAMA_SHORT.micro_batches)
    return f"{100 * share:.1f} % (of {jobs.LLAMA_SHORT.micro_batches} micro-batches: {100 * (offloaded / plain - 1):.1f} %)", share <= 0.10


def planned_memory(records):
    return nearest({name: (peaks(one) or (0, 0)) for name, one in planned_rows(records)}, 0.05)


def planned_time(records):
    found = nearest({name: (one["result"].get("planned_step_seconds", 0), step_seconds(one)) for name, one in planned_rows(records)}, 0.10)
    rates = dict.fromkeys(one["result"]["planned_rates"] for _, one in planned_rows(records) if "planned_rates" in one["result"])
    return (f"{found[0]}; rates {' and '.join(rates)}", found[1]) if found and rates else found


def planned_rows(records):
    return ((name, one) for name, one in passed(records).items() if "case" in one["about"])


def nearest(pairs, goal):
    """Of pairs (planned, measured), by name: the plan that is furthest off."""
    off = {name: abs(planned / measured - 1) for name, (planned, measured) in pairs.items() if planned}
    if not off:
        return None
    worst = max(off, key=off.get)
    return f"at most {100 * off[worst]:.1f} % ({worst}), {len(off)} rows", off[worst] <= goal


def cudnn_attention(records):
    """Of each row of Sherd that does not name another kernel."""
    found = {name: results.attention_of(one["result"]) for name, one in planned_rows(records)
             if one["about"]["case"].startswith(jobs.LLAMA.model) and "flash" not in one["about"]["of"]}
    found = {name: kernel for name, kernel in found.items() if kernel}
    others = [f"{kernel} in {name}" for name, kernel in found.items() if kernel != "cudnn"]
    return (others[0] if others else f"cudnn in {len(found)} rows", not others) if found else None


def start(records):
    ours = of_case(records, jobs.LLAMA.name).get("Sherd")
    seconds = ours["result"].get("seconds_to_first_step") if ours else None
    return (f"{seconds:.1f} s", seconds <= 20) if seconds else None


GOALS = {
    "the tests of kernels and engine pass": lambda records: every(records, TESTS),
    "memcheck and racecheck find nothing in the kernels": lambda records: every(records, SANITIZED),
    "goldens in fp32 within 1e-4": goldens,
    "losses of 20 steps in fp32 within 1e-3 of the CPU's": losses,
    f"`sherd train recipes/stories260k-squad.toml`: held-out loss within 2 % of the CPU's {CPU_LOSS}": training_run,
    "Llama-3-8B: 1.08 × the fastest FSDP2": beside_fsdp2("Llama-3-8B", 1.08),
    "BLOOM-560M: 2 × the fastest FSDP2": beside_fsdp2("BLOOM-560M", 2.0),
    "Llama-3-8B with 128 micro-batches: an optimizer on the host adds at most 10 % to a step": offload,
    "Llama-3-8B's attention is cuDNN's": cudnn_attention,
    "planned memory within 5 % of each row's peak": planned_memory,
    "planned step time within 10 % of each row's": planned_time,
    "Llama-3-8B: 20 s from the start of the program to the end of its first step": start,
}
H200_GOALS = {
    f"{jobs.LLAMA.name}: 10,800 tokens/s": at_least(jobs.LLAMA, 10.8e3),
    f"{jobs.LLAMA_SHORT.name}: 13,500 tokens/s": at_least(jobs.LLAMA_SHORT, 13.5e3),
    f"{jobs.BLOOM.name}: 130,000 tokens/s": at_least(jobs.BLOOM, 130e3),
}


def goals_of(day):
    return GOALS | H200_GOALS if "H200" in kind_of(day) else GOALS


def goals(day):
    yield "| goal | found | |\n|---|---|---|"
    for goal, find in goals_of(day).items():
        found = find(day["results"]) if day["machine"]["device"] == "cuda" else None
        yield f"| {goal} | {found[0]} | {'reached' if found[1] else '**missed**'} |" if found else f"| {goal} | – | not measured |"


def known(value, pattern, scale=1):
    return "–" if value is None else format(scale * value, pattern)


def kernels(day):
    for one in passed(day["results"]).values():
        if one["group"] != "kernels":
            continue
        result = one["result"]
        yield f"\nA copy on the device moves {result['copy_bytes_per_second'] * 1e-12:.2f} TB/s. Kernels, at the sizes of Llama-3-8B in bf16:"
        yield "\n| kernel | µs | share of the copy's bytes per second |\n|---|---|---|"
        for kernel in result["kernels"]:
            yield f"| {kernel['name']} | {known(kernel.get('seconds'), '.1f', 1e6)} | {100 * kernel['share_of_copy']:.0f} % |"
        yield "\n| product | ms | TFLOP/s |\n|---|---|---|"
        for product in result["products"]:
            yield f"| {product['name']} | {known(product.get('seconds'), '.3f', 1e3)} | {product['teraflops_per_second']:.0f} |"


def rows(day):
    for group, title in {"rows": "A step", "rivals": "Shapes that others publish"}.items():
        found = {name: one for name, one in passed(day["results"]).items() if one["group"] == group}
        if found:
            yield f"\n{title}:"
            yield ("\n| case, program | tokens/s | Sherd ÷ this | step s | planned s | peak GiB | planned GiB | attention |\n"
                   "|---|---|---|---|---|---|---|---|")
        for name, one in found.items():
            ours = of_case(day["results"], one["about"]["case"]).get("Sherd")
            ratio = f"{rate(ours) / rate(one):.2f}" if ours and ours is not one else "–"
            planned, measured = peaks(one) or (None, one["result"]["peak_rank_bytes"][0])
            computed = "; ".join(filter(None, (results.attention_of(one["result"]), results.fall_back_of(one["result"])))).replace("|", "\\|")
            recomputed = ", activations recomputed" if "--checkpoint-activations" in one.get("command", "") else ""
            yield (f"| {name}{recomputed} | {rate(one):,.0f} | {ratio} | {step_seconds(one):.4g} "
                   f"| {known(one['result'].get('planned_step_seconds'), '.4g')} | {gib(measured)} | {gib(planned) if planned else '–'} "
                   f"| {computed or '–'} |")


def profiles(day):
    for name, one in passed(day["results"]).items():
        groups, problem = (one.get("result", {}).get(key) for key in ("device_groups", "device_problem"))
        if problem:
            yield f"\nNo profile of {name}: {problem}"
        if not groups:
            continue
        step, idle = one["result"].get("device_step_seconds"), one["result"].get("device_idle_seconds")
        yield (f"\nWhere the device's time goes: {name}. A profiled step takes {known(step, '.1f', 1e3)} ms; the device is idle for "
               f"{known(idle, '.1f', 1e3)} ms of it.")
        yield "\n| group | calls | ms | share of the step | share of the limit |\n|---|---|---|---|---|"
        for group in groups:
            yield (f"| {group['group']} | {round(group['calls'], 1):g} | {1e3 * group['seconds']:.2f} | {100 * group['share_of_step']:.1f} % "
                   f"| {known(group.get('share_of_limit'), '.0f', 100)}{' %' if group.get('share_of_limit') is not None else ''} |")
        for kernel in one["result"].get("device_kernels", []):
            if kernel["group"] == "other":
                yield f"\nOf no known group: `{kernel['name'][:100]}`, {round(kernel['calls'], 1):g} calls, {1e3 * kernel['seconds']:.2f} ms."


def troubles(day):
    lines = [f"- {name}: {one['status']}: {one['reason'].strip().splitlines()[-1][:300] if one['reason'].strip() else ''}"
             for name, one in day["results"].items() if one["status"] != "passed"]
    if lines:
        yield "\nWithout a result:\n"
        yield from lines


def other_commits(day):
    """A day may go on with programs that were packed anew: which results are of the ones before."""
    newest = day["machine"]["packed"].get("commit", "unknown")
    found = {}
    for name, one in day["results"].items():
        if one.get("commit", newest) != newest:
            found.setdefault(one["commit"], []).append(name)
    for commit, names in found.items():
        yield f"\nResults of {commit}: {'; '.join(names)}."


def title(day):
    machine, gpu = day["machine"], day["machine"].get("gpu")
    if gpu:
        memory = f", {float(gpu['memory.total']) / 1024:.0f} GiB" if "memory.total" in gpu else ""
        what = f"{gpu['name']}, driver {gpu['driver_version']}{memory}"
    else:
        what = "a CPU, in small: this shows that the day works, and measures nothing"
    by_hand = f" {machine['by_hand']}" if "by_hand" in machine else ""
    return f"\n## {kind_of(day)}\n\n{what}; torch {machine['torch']}; Sherd {machine['packed'].get('commit', 'unknown')}; {machine['date']}.{by_hand}\n"


def text_of(days):
    lines = []
    for day in days:
        lines += [title(day), *goals(day), *rows(day), *profiles(day), *kernels(day), *troubles(day), *other_commits(day)]
    return "\n".join(lines) + "\n\n"
