"""Which machine a benchmark ran on, as its tables name it."""
import platform
from pathlib import Path


def cpu_entry():
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def processor():
    """For example "AMD EPYC (family 26, model 2; AVX-512 with bf16, no AMX)": names alone do not tell generations apart."""
    entry = cpu_entry()
    if "cpu family" not in entry:
        return platform.processor() or platform.machine()
    flags = entry.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    halves = " with bf16" if "avx512_bf16" in flags else ""
    tiles = "AMX" if "amx_bf16" in flags else "no AMX"
    return f"{entry['model name']} (family {entry['cpu family']}, model {entry['model']}; {vectors}{halves}, {tiles})"
