"""The jobs of the GPU day: two commands and the shapes that others publish, on a GPU or, in small, on a CPU."""
import dataclasses
import json
import os
from pathlib import Path

TOOLS = ("compute-sanitizer", "python3")  # the system's; every other program is packed
GIB = 2**30
LLAMA_8B = 8.03e9  # parameters
LARGE_GIB = 100  # a GPU with more memory than this trains Llama-3-8B in every mode of the day
TINY_SEQUENCE = 64  # tokens per sample on a CPU


@dataclasses.dataclass
class Job:
    name: str
    group: str  # of the page: "checks", "kernels", "rows" or "rivals"
    words: list  # the command line; its first word is a packed program or one of TOOLS
    seconds: int  # time limit of all attempts together
    about: dict = dataclasses.field(default_factory=dict)  # what the page needs to know about it
    when_out_of_memory: list = dataclasses.field(default_factory=list)  # words that a second attempt adds
    reads: str = "json"  # how its output is read: a key of results.READERS
    needs_gpu: bool = False
    needs_gib: float = 0  # of GPU memory

    def programs(self):
        """The programs it runs; a sanitizer runs another one."""
        return [self.words[0], *(word for word in self.words[1:] if word in ("ops_cuda_test", "sherd_gpu_test"))]

    def files(self):
        """The model file it reads, if any."""
        return [self.words[at + 1] for at, word in enumerate(self.words) if word == "--model"]


@dataclasses.dataclass
class Place:
    """Where jobs run."""
    device: str  # "cuda" or "cpu"
    root: Path  # the packed folder
    scratch: Path  # for files that are thrown away
    gib: float = 0  # of GPU memory
    torch: Path | None = None  # the torch package of python3, if it has one

    @property
    def is_gpu(self):
        return self.device == "cuda"

    @property
    def is_large(self):
        return self.gib > LARGE_GIB or not self.is_gpu

    @property
    def threads(self):
        return str(os.cpu_count() if self.is_gpu else 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its batch. On a CPU every case has the smallest model and at most two tiny micro-batches."""
    model: str
    config: str
    tokens: int  # per sample
    samples: int = 1  # per micro-batch
    micro_batches: int = 1  # per step

    @property
    def name(self):
        batch = f"{self.micro_batches} × " if self.micro_batches > 1 else ""
        return f"{self.model}, {batch}{self.samples} × {self.tokens} tokens"

    def flags(self, place, warmup, steps):
        """What `sherd bench` and peer.py both take."""
        model = Path(self.config if place.is_gpu else "recipes/models/stories260k/config.json")
        tokens, samples = (self.tokens, self.samples) if place.is_gpu else (min(self.tokens, TINY_SEQUENCE), 1)
        return ["--model", str(place.root / model), "--device", place.device, "--seq", str(tokens), "--micro-batch", str(samples),
                "--warmup", str(warmup), "--steps", str(steps)]


BLOOM = Case("BLOOM-560M", "benchmarks/peers/shapes/bloom-560m.json", 512, samples=16)
LLAMA = Case("Llama-3-8B", "recipes/models/llama-3-8b/config.json", 8192)
LLAMA_SHORT = dataclasses.replace(LLAMA, tokens=1024, samples=4, micro_batches=16)
LLAMA_4096 = dataclasses.replace(LLAMA, tokens=4096, samples=2)
# What others publish figures of. Llama: batches of 8192 tokens, four per step.
PUBLISHED = [dataclasses.replace(LLAMA, tokens=tokens, samples=8192 // tokens, micro_batches=4) for tokens in (1024, 2048, 4096)]
QWEN = [Case(f"Qwen2.5-{size.upper()}", f"recipes/models/qwen2.5-{size}/config.json", 1024, samples, micro_batches=8)
        for size, samples in (("0.5b", 32), ("1.5b", 16), ("3b", 16), ("7b", 8))]

# How Sherd lays out Llama-3-8B: bytes per parameter on the GPU, and the flags of `sherd bench`.
MODES = {"Sherd": (8, ["--master", "bfloat16", "--reduce-dtype", "bf16", "--moments", "bf16"]),
         "Sherd, 12 bytes": (12, ["--master", "split", "--moments", "bf16"]),
         "Sherd, optimizer on the host": (6, ["--offload-optimizer", "HOST"])}
PEERS = {"FSDP2": [], "FSDP2 compiled": ["--compile"], "FSDP2 compiled, cuDNN": ["--compile", "--attention", "cudnn"]}


def check(name, seconds, *words, **fields):
    return Job(name, "checks", list(words), seconds, **fields)


def doctor(_place):
    yield check("doctor", 15, "sherd", "doctor", "--json", reads="doctor")


def goldens(place):
    folders = {"stories260k": "recipes/models/stories260k", "tiny-llama3": "tests/data/tiny-llama3-hf", "tiny-bloom": "tests/data/tiny-bloom-hf"}
    for model, folder in folders.items():
        golden = place.root / f"tests/data/goldens/{model}-hf.safetensors"
        seconds = 15 if model == "stories260k" else 8  # the first job on a GPU also loads CUDA's libraries from disk
        yield check(f"goldens of {model}", seconds, "golden_check", str(place.root / folder), str(golden), "--device", place.device,
                    about={"golden": model})


def losses(place):
    """20 steps in fp32, on the device and on its host's CPU."""
    for model, folder in {"Llama": "recipes/models/stories260k", "BLOOM": "tests/data/tiny-bloom-hf"}.items():
        for device in dict.fromkeys([place.device, "cpu"]):
            yield check(f"20 steps of {model}, {device}", 10 if device == "cuda" else 6, "sherd", "bench", "--model", str(place.root / folder),
                        "--device", device, "--dtype", "fp32", "--seq", "48", "--micro-batch", "4", "--warmup", "1", "--steps", "18", "--json",
                        about={"losses_of": model, "on": device})


def tests(_place):
    # The kernel tests load cuDNN and make its plans for some fifty shapes.
    for name, program, seconds in (("engine tests", "sherd_gpu_test", 24), ("kernel tests", "ops_cuda_test", 40)):
        yield check(name, seconds, program, "--gtest_brief=1", reads="tests", needs_gpu=True)


def training(place):
    steps = [] if place.is_gpu else ["--train.max_steps", "6"]
    yield check("training run", 13, "sherd", "train", str(place.root / "recipes/stories260k-squad.toml"), "--device.kind", place.device,
                "--train.output", str(place.scratch / "run"), *steps, reads="run")


def sanitizers(_place):
    # Each kernel in fp32 and in 16 bits, a few cases of each: a sanitizer makes them a hundred times slower. Attention is libraries'
    # own: a race in it would not be Sherd's, and racecheck takes minutes for cuDNN's.
    few = "--gtest_brief=1", "--gtest_filter=*CudaBackend*:-*HasThePlainOnesBits*:*SameBits*"
    for tool, seconds, left_out in (("memcheck", 20, ""), ("racecheck", 60, ":*Attention*")):
        yield check(f"kernels, {tool}", seconds, "compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all",
                    "--report-api-errors", "no", "--tool", tool, "ops_cuda_test", few[0], few[1] + left_out, reads="tests", needs_gpu=True)


def kernels(place):
    yield Job("kernels and products", "kernels", ["gpu_kernels", "--device", place.device], 20)


def rates(_place):
    """The rows after it are planned with these rates; if it fails, with the shipped ones. On a CPU it would take minutes."""
    yield check("rates of this GPU", 30, "sherd", "bench", "--calibrate", "--device", "cuda", reads="rates", needs_gpu=True)


def row(place, case, seconds, *words, mode="Sherd", variant="", group="rows", needs_gpu=False):
    """One line of `sherd bench`. All activations are kept where they fit, and recomputed where they do not."""
    is_llama = case.model != BLOOM.model
    size, flags = MODES[mode] if is_llama else (0, [])
    host = "host" if place.is_gpu else str(place.scratch)  # a CPU offloads to a folder
    micro_batches = case.micro_batches if place.is_gpu else min(case.micro_batches, 2)
    steps = 1 if case.micro_batches > 1 else 5 if is_llama else 10
    of = mode + (f", {variant}" if variant else "")
    return Job(f"{case.name}, {of}", group,
               ["sherd", "bench", *case.flags(place, 1, steps), "--accum", str(micro_batches), "--max-minutes", "none", "--threads", place.threads,
                *(host if flag == "HOST" else flag for flag in flags), *words, "--json"],
               seconds, {"case": case.name, "of": of}, ["--checkpoint-activations"], needs_gpu=needs_gpu,
               needs_gib=size * LLAMA_8B / GIB + 3 if case.model == LLAMA.model else 0)


def peer(place, case, seconds, of, group="rows"):
    """The same case by PyTorch FSDP2 with one rank."""
    is_llama = case.model != BLOOM.model
    return Job(f"{case.name}, {of}", group,
               ["python3", str(place.root / "benchmarks/gpu/peer.py"), *case.flags(place, 3, 10), *(["--all-bf16"] if is_llama else []), *PEERS[of]],
               seconds, {"case": case.name, "of": of}, ["--checkpoint-activations"], needs_gpu="cuDNN" in of)


def compared(place):
    """Llama-3-8B as both Sherd and FSDP2 train it: 16 of its layers where the GPU is too small for FSDP2 to hold it."""
    if place.is_large:
        return LLAMA
    fields = json.loads((place.root / LLAMA.config).read_text()) | {"num_hidden_layers": 16}
    path = place.scratch / "llama-16-layers.json"
    path.write_text(json.dumps(fields))
    return dataclasses.replace(LLAMA, model="Llama-3-8B with 16 layers", config=str(path))


def first_command(place):
    """What decides whether Sherd is right on this GPU, then what decides the goals of speed."""
    for jobs in (doctor, goldens, losses, tests, training, kernels, rates):
        yield from jobs(place)
    yield row(place, BLOOM, 20, "--profile")
    yield row(place, LLAMA, 45, "--profile")
    beside = compared(place)
    if beside is not LLAMA:
        yield row(place, beside, 30)
    for of in ("FSDP2 compiled, cuDNN", "FSDP2 compiled"):
        yield peer(place, beside, 45 if beside is LLAMA else 35, of)
    yield peer(place, BLOOM, 30, "FSDP2 compiled")  # cuDNN has no ALiBi
    yield row(place, LLAMA_SHORT, 50)


def second_command(place):
    yield row(place, LLAMA_SHORT, 80, mode="Sherd, optimizer on the host")
    yield row(place, BLOOM, 15, "--cuda-graphs", variant="CUDA graphs", needs_gpu=True)
    yield row(place, LLAMA, 25, mode="Sherd, 12 bytes")
    yield row(place, LLAMA_4096, 20)
    yield from sanitizers(place)
    yield peer(place, BLOOM, 20, "FSDP2")


def rivals(place):
    """Shapes that others publish figures of. Then what hardly decides a goal: flash attention, and the peer without compilation."""
    for case in PUBLISHED:
        yield row(place, case, 40, group="rivals")
    if place.is_large:
        yield row(place, LLAMA, 35, "--attention", "flash", variant="flash attention", needs_gpu=True)
    yield peer(place, compared(place), 40, "FSDP2")


def qwen(place):
    """All sizes in bf16, and with CUDA graphs those whose kernels are short enough for the host's launches to matter."""
    for case in QWEN:
        yield row(place, case, 35, group="rivals")
    for case in QWEN[:2]:
        yield row(place, case, 30, "--cuda-graphs", variant="CUDA graphs", group="rivals", needs_gpu=True)


def lora(place):
    """For comparison with the row of all parameters in command 2."""
    yield row(place, LLAMA_4096, 35, "--lora-rank", "16", variant="LoRA of rank 16", group="rivals")
    yield row(place, LLAMA, 35, "--lora-rank", "16", variant="LoRA of rank 16", group="rivals")


COMMANDS = {"1": first_command, "2": second_command, "rivals": rivals, "qwen": qwen, "lora": lora}
BY_FLAG = {"rivals": "Llama-3-8B in shapes that others publish figures of", "qwen": "Qwen2.5 of four sizes, with samples of 1024 tokens",
           "lora": "adapters of rank 16 on all linear layers of Llama-3-8B"}


def of_command(command, place):
    """On a CPU, which other work may keep busy, limits are five times as long."""
    longer = 1 if place.is_gpu else 5
    return [dataclasses.replace(job, seconds=longer * job.seconds) for job in COMMANDS[command](place)]
