"""Reads what jobs print, and says each result in a few words."""
import json
import math
import re

KEPT = 8000  # characters of what a job printed


def of_json(text):
    """The last line of JSON."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        return {"result": json.loads(lines[-1])}
    except (IndexError, ValueError):
        return {"status": "failed", "reason": f"it printed no line of JSON:\n{text[-KEPT:]}".strip()}


def of_doctor(text):
    """Without the folders and variables of the machine."""
    read = of_json(text)
    if "result" in read:
        read["result"] = {key: read["result"].get(key) for key in ("processor", "memory", "gpus")}
    return read


def of_tests(text):
    """What a program of tests sums up."""
    passed = re.search(r"\[  PASSED  \] (\d+) test", text)
    if passed is None:
        return {"status": "failed", "reason": f"it printed no sum of its tests:\n{text[-KEPT:]}".strip()}
    if passed[1] == "0":
        return {"status": "skipped", "reason": "the program skipped its tests"}
    return {"result": {"tests": int(passed[1])}}


def of_run(text):
    """The summary of `sherd train`."""
    found = re.search(r"done: (\d+) steps? in .*?\nsummary: .*?eval_loss ([-+.\w]+)", text, re.DOTALL)
    if found is None:
        return {"status": "failed", "reason": f"it printed no summary with an eval_loss:\n{text[-KEPT:]}".strip()}
    return {"result": {"steps": int(found[1]), "eval_loss": float(found[2])}}


def of_rates(text):
    """Which GPU `sherd bench --calibrate` wrote rates of."""
    found = re.search(r"rates of (\S+) written to", text)
    return {"result": {"rates_of": found[1]}} if found else {"status": "failed", "reason": f"it wrote no rates:\n{text[-KEPT:]}".strip()}


READERS = {"json": of_json, "doctor": of_doctor, "tests": of_tests, "run": of_run, "rates": of_rates}


def read_as(kind, text):
    """The result that READERS[kind] finds; a failure if it raises."""
    try:
        return READERS[kind](text)
    except Exception as error:  # whatever a program prints, the day goes on
        return {"status": "failed", "reason": f"{text[-KEPT:]}\nits output cannot be read: {type(error).__name__}: {error}"}


def passed(records):
    return {name: one for name, one in records.items() if one["status"] == "passed"}


def rate(record):
    return record["result"]["tokens_per_second"]


def step_seconds(record):
    return record["result"]["step_seconds"]["median"]


def peaks(record):
    """Planned and measured bytes: all of a GPU's; on a CPU what a run takes besides the program. None of peers."""
    result = record["result"]
    if "planned_peak_bytes" not in result:
        return None
    own = result.get("constant_rank_pss_bytes", [0])[0]
    return result["planned_peak_bytes"], (result["peak_rank_pss_bytes"][0] - own if own else result["peak_rank_bytes"][0])


def worst_golden(result):
    """Name and value of the largest relative difference."""
    return max(((name, value) for name, value in result.items() if name.endswith("_rel")), key=lambda one: one[1])


def relative(found, expected):
    """Infinite where either is no number."""
    return abs(found - expected) / abs(expected) if all(isinstance(one, float) and math.isfinite(one) for one in (found, expected)) \
        else math.inf


def losses_differ(records):
    """Largest relative difference between the GPU's losses and the CPU's, by model."""
    losses, worst = {}, {}
    for one in passed(records).values():
        if "losses_of" in one["about"]:
            losses.setdefault(one["about"]["losses_of"], {})[one["about"]["on"]] = one["result"]
    for model, by_device in losses.items():
        if "cuda" in by_device and "largest_difference" in by_device["cuda"]:  # of a record entered by hand
            worst[model] = by_device["cuda"]["largest_difference"]
        elif len(by_device) == 2:
            worst[model] = max(relative(a, b) for a, b in zip(by_device["cuda"]["losses"], by_device["cpu"]["losses"], strict=True))
    return worst


def gib(count):
    return f"{count / 2**30:.1f}"


def one_line(text):
    return " ".join(text.split())


def attention_of(result):
    """The kernels that computed attention, with the reason where cuDNN's did not. Empty on a CPU and for a peer."""
    choices = result.get("attention", [])
    if isinstance(choices, str):  # what a peer was asked for
        return ""
    return ", ".join(dict.fromkeys(one["kernel"] + (f" ({one_line(one['why'])})" if one["why"] and one["kernel"] != "cudnn" else "")
                                   for one in choices))


def fall_back_of(result):
    """Which back end computed, and what it left to LibTorch. Empty where Sherd's kernels for GPUs computed everything."""
    kernels = one_line(result.get("kernels", ""))
    return "" if kernels in ("", "cuda") else f"kernels: {kernels}"


def figures_of_row(record):
    result = record["result"]
    planned = f" (planned {result['planned_step_seconds']:.3f})" if "planned_step_seconds" in result else ""
    parts = [f"{rate(record):.0f} tokens/s", f"step {step_seconds(record):.4g} s{planned}"]
    memory = peaks(record)
    parts.append(f"peak {gib(memory[1])} GiB (planned {gib(memory[0])})" if memory else f"peak {gib(result['peak_rank_bytes'][0])} GiB")
    parts += [f"attention {attention_of(result)}"] if attention_of(result) else []
    parts += [fall_back_of(result)] if fall_back_of(result) else []
    if "seconds_to_first_step" in result:
        parts.append(f"first step after {result['seconds_to_first_step']:.1f} s")
    parts += [f"no profile: {result['device_problem']}"] if result.get("device_problem") else []
    largest = sorted(result.get("device_groups", []), key=lambda group: -group["seconds"])[:6]
    parts += [f"{group['group']} {100 * group['share_of_step']:.0f} %" for group in largest]
    return ", ".join(parts)


def figures_of_kernels(result):
    low = sorted(result["kernels"], key=lambda kernel: kernel["share_of_copy"])[:5]
    return ", ".join([f"copy {result['copy_bytes_per_second'] * 1e-12:.2f} TB/s",
                      *(f"{kernel['name']} {100 * kernel['share_of_copy']:.0f} %" for kernel in low),
                      *(f"{product['name']} {product['teraflops_per_second']:.0f} TFLOP/s" for product in result["products"])])


def said_of(record, records):
    """One line for the terminal: the reason for no result, else the figures. `records` are those of the day so far."""
    try:
        return record["reason"].splitlines()[-1][:150] if record["reason"] else figures(record, records)
    except Exception as error:  # the result is kept, and the day goes on
        return f"its figures cannot be printed: {type(error).__name__}: {error}"


def figures(record, records):
    result, about = record.get("result"), record["about"]
    if record["status"] != "passed" or result is None:
        return ""
    if record["group"] == "kernels":
        return figures_of_kernels(result)
    if record["group"] in ("rows", "rivals"):
        return figures_of_row(record)
    if "losses_of" in about:
        worst = losses_differ(records).get(about["losses_of"])
        return "" if worst is None else f"GPU and CPU differ by {worst:.1e} at most"
    if "golden" in about:
        name, value = worst_golden(result)
        return f"largest difference {value:.1e} ({name})"
    if "tests" in result:
        return f"{result['tests']} tests passed"
    if "eval_loss" in result:
        return f"{result['steps']} steps, held-out loss {result['eval_loss']:.3f}"
    if "rates_of" in result:
        return result["rates_of"]
    return ", ".join(gpu["name"] for gpu in result["gpus"]["found"]) or "no GPU"
