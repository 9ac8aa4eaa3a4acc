"""What the GPU day measures: the jobs of each stage, on a GPU or, in small, on a CPU."""
import dataclasses
import json
from pathlib import Path

# Minutes that each stage may take: 24 in all, and none more than a command of 9.
STAGES = {"parity": 4, "kernels": 4, "rows": 8, "peer": 8}
TOOLS = ("compute-sanitizer", "python3")  # of the system; other programs are packed
GIB = 2**30


@dataclasses.dataclass
class Job:
    name: str
    stage: str
    command: list  # words; the first is a packed program or one of TOOLS
    seconds: int  # that it may take
    about: dict = dataclasses.field(default_factory=dict)  # what the page has to know of it
    otherwise: list = dataclasses.field(default_factory=list)  # commands that are tried where it fails
    has_result: bool = True  # a line of JSON; tests have none
    needs_gpu: bool = False
    needs_gib: float = 0  # of the GPU
    needs_flag: str = ""  # that the program's --help has to name

    def programs(self):
        """That it needs: a sanitizer has one after it."""
        return [self.command[0], *(word for word in self.command[1:] if word in ("ops_cuda_test", "sherd_gpu_test"))]


@dataclasses.dataclass
class Place:
    """Where jobs run: "cpu" or "cuda", the folder that was packed, one for files that are thrown away, and the GPU's memory."""
    device: str
    root: Path
    scratch: Path
    gib: float = 0

    @property
    def is_gpu(self):
        return self.device == "cuda"

    @property
    def offload(self):
        """Where masters and moments rest: on the host of a GPU, of a CPU on the disk."""
        return "host" if self.is_gpu else str(self.scratch)

    def model(self, of_gpu):
        """A shape of the day, or on a CPU the smallest model there is."""
        return str(self.root / (of_gpu if self.is_gpu else "recipes/models/stories260k/config.json"))


def parity(place):
    # 16-bit and fp32 forms of every kernel in a few cases: a sanitizer takes a hundred times as long.
    few = "--gtest_filter=*CudaBackend*:-*HasThePlainOnesBits*:*SameBits*"
    sanitize = ["compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all", "--report-api-errors", "no", "--tool"]

    def check(name, seconds, *words):
        return Job(name, "parity", list(words), seconds, has_result=False, needs_gpu=True)

    yield check("kernels beside fp64", 90, "ops_cuda_test")
    yield check("engine beside the CPU", 90, "sherd_gpu_test")
    yield from losses(place)
    yield from goldens(place)
    yield check("kernels, memcheck", 60, *sanitize, "memcheck", "ops_cuda_test", few)
    yield check("kernels, racecheck", 60, *sanitize, "racecheck", "ops_cuda_test", few)
    yield check("engine, memcheck", 60, *sanitize, "memcheck", "sherd_gpu_test", "--gtest_filter=*AWorldOfOneTrainsAsOnTheHost*:*Nccl*")
    yield check("engine, racecheck", 60, *sanitize, "racecheck", "sherd_gpu_test", "--gtest_filter=*AWorldOfOneTrainsInBf16*")


def losses(place):
    """20 steps in fp32, on the device and on the CPU beside it."""
    for model, folder in {"Llama": "recipes/models/stories260k", "BLOOM": "tests/data/tiny-bloom-hf"}.items():
        for device in dict.fromkeys([place.device, "cpu"]):
            command = ["sherd", "bench", "--model", str(place.root / folder), "--device", device, "--dtype", "fp32", "--seq", "48",
                       "--micro-batch", "4", "--warmup", "1", "--steps", "18", "--json"]
            yield Job(f"20 steps of {model}, {device}", "parity", command, 40, {"losses_of": model, "on": device})


def goldens(place):
    for model, folder in {"stories260k": "recipes/models/stories260k", "tiny-llama3": "tests/data/tiny-llama3-hf",
                          "tiny-bloom": "tests/data/tiny-bloom-hf"}.items():
        golden = place.root / f"tests/data/goldens/{model}-hf.safetensors"
        on = ["--device", place.device] if place.is_gpu else []
        yield Job(f"goldens of {model}", "parity", ["golden_check", str(place.root / folder), str(golden), *on], 30,
                  {"golden": model}, needs_flag="--device" if place.is_gpu else "")


def kernels(place):
    yield Job("kernels and products", "kernels", ["gpu_kernels", "--device", place.device], 200)


# How many bytes a parameter takes, and what sherd bench is told for it.
MODES = {
    "all bf16": (8, "bf16 moments", ["--master", "bfloat16", "--reduce-dtype", "bf16", "--moments", "bf16"]),
    "12 bytes": (12, "bf16 moments", ["--master", "split", "--moments", "bf16"]),
    "14 bytes": (14, "fp32 moments", ["--master", "split", "--reduce-dtype", "bf16"]),
    "offload": (6, "fp32 moments", ["--offload-optimizer", "OFFLOAD"]),
    "all offloaded": (1, "fp32 moments", ["--master", "split", "--reduce-dtype", "bf16", "--offload-optimizer", "OFFLOAD", "--offload-gradients", "OFFLOAD",
                                          "--offload-parameters", "OFFLOAD"]),
}
LLAMA_8B = 8.03e9  # parameters
# Mode, tokens of a sample, samples of a micro-batch, micro-batches a step: what matters most comes first.
ROWS = [
    ("all bf16", 8192, 1, 1), ("12 bytes", 8192, 1, 1), ("offload", 8192, 1, 1), ("all bf16", 1024, 4, 128), ("14 bytes", 8192, 1, 1),
    ("all bf16", 4096, 2, 1), ("12 bytes", 4096, 2, 1), ("14 bytes", 4096, 2, 1), ("12 bytes", 1024, 8, 1), ("14 bytes", 1024, 8, 1),
    ("offload", 4096, 2, 1), ("offload", 1024, 8, 1), ("all offloaded", 8192, 1, 1),
]
TINY_SEQUENCE = 64  # on a CPU


def is_large(place):
    """Whether it holds Llama-3-8B with moments in fp32."""
    return place.gib > 100


def bench(place, model, sequence, micro_batch, accumulation, flags, steps):
    if not place.is_gpu:
        sequence, micro_batch, accumulation = min(sequence, TINY_SEQUENCE), 1, min(accumulation, 2)
    return ["sherd", "bench", "--model", model, "--device", place.device, "--max-minutes", "none", "--threads", "THREADS", "--seq",
            str(sequence), "--micro-batch", str(micro_batch), "--accum", str(accumulation), "--warmup", "1", "--steps", str(steps),
            "--json", *(place.offload if flag == "OFFLOAD" else flag for flag in flags)]


def rows(place):
    bloom = place.model("benchmarks/peers/shapes/bloom-560m.json")
    yield Job("BLOOM-560M, 16 × 512 tokens", "rows", bench(place, bloom, 512, 16, 1, [], 10), 60, {"model": "BLOOM-560M"})
    # The goal of many micro-batches is one of the smaller GPU: on a larger one its two minutes come last.
    for mode, sequence, micro_batch, accumulation in sorted(ROWS, key=lambda row: is_large(place) and row[3] > 1):
        size, moments, flags = MODES[mode]
        steps = 1 if accumulation > 1 else 5
        plain = bench(place, place.model("recipes/models/llama-3-8b/config.json"), sequence, micro_batch, accumulation, flags, steps)
        about = {"model": "Llama-3-8B", "mode": mode, "moments": moments, "sequence": sequence,
                 "tokens_a_micro_batch": sequence * micro_batch, "accumulation": accumulation}
        # All activations are kept where they fit, and computed again where they do not.
        yield Job(f"Llama-3-8B, {mode}, {accumulation} × {micro_batch} × {sequence} tokens", "rows", plain, 240 if accumulation > 1 else 120, about,
                  otherwise=[[*plain, "--checkpoint-activations"]], needs_gib=size * LLAMA_8B / GIB + 3)
    if place.is_gpu:
        yield Job("BLOOM-560M, 16 × 512 tokens, CUDA graphs", "rows", bench(place, bloom, 512, 16, 1, ["--cuda-graphs"], 10), 60,
                  {"model": "BLOOM-560M", "graphs": True})


def peer(place):
    """Sherd, FSDP2 and FSDP2 compiled, one after the other."""
    whole = is_large(place) or not place.is_gpu
    llama = place.model("recipes/models/llama-3-8b/config.json")
    if not whole:
        llama = str(cut(Path(llama), 16, place.scratch))
    shapes = [("BLOOM-560M", place.model("benchmarks/peers/shapes/bloom-560m.json"), 512, 16, [], []),
              ("Llama-3-8B" if whole else "Llama-3-8B, 16 layers", llama, 8192, 1, MODES["all bf16"][2], ["--all-bf16"])]
    for shape, model, sequence, micro_batch, flags, peer_flags in shapes:
        ours = bench(place, model, sequence, micro_batch, 1, flags, 10)
        yield Job(f"{shape}, Sherd", "peer", ours, 90, {"shape": shape, "of": "Sherd"}, otherwise=[[*ours, "--checkpoint-activations"]])
        for kind, words in {"FSDP2": [], "FSDP2 compiled": ["--compile"]}.items():
            theirs = ["python3", str(place.root / "benchmarks/gpu/peer.py"), "--model", model, "--device", place.device, "--seq",
                      ours[ours.index("--seq") + 1], "--micro-batch", ours[ours.index("--micro-batch") + 1], "--warmup", "3",
                      "--steps", "10", *peer_flags, *words]
            yield Job(f"{shape}, {kind}", "peer", theirs, 150, {"shape": shape, "of": kind},
                      otherwise=[[*theirs, "--checkpoint-activations"]])


def cut(config, layers, folder):
    """The same shape with fewer layers."""
    fields = json.loads(config.read_text()) | {"num_hidden_layers": layers}
    path = folder / f"llama-{layers}-layers.json"
    path.write_text(json.dumps(fields))
    return path


def of_stage(stage, place):
    return list({"parity": parity, "kernels": kernels, "rows": rows, "peer": peer}[stage](place))
