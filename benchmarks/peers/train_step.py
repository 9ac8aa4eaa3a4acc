"""One rank of the peer: PyTorch FSDP2 (or plain PyTorch, unsharded) on the shapes, weights and tokens that `sherd bench` trains.

Started by ../run, under torchrun where there are several ranks. Prints one line of JSON on rank 0.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

ANSWER_TOKENS = 8


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--tokens", required=True, help="file of int32 ids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--supervised", choices=["all", "answer"], default="all")
    parser.add_argument("--lora-rank", type=int, default=0, help="train PEFT's adapters of this rank on all linear layers, not the model")
    parser.add_argument("--fused", action="store_true", help="fused AdamW")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--unsharded", action="store_true", help="one process, bf16 working copy beside fp32 masters")
    return parser.parse_args()


def resident_bytes(file, field):
    with open(file) as lines:
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def blocks_of(model):
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    return model.model.layers if hasattr(model, "model") else model.transformer.h


def load(options):
    config = AutoConfig.from_pretrained(options.model)
    attention = "eager" if config.model_type == "bloom" else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation=attention)
    return with_adapters(model, options.lora_rank) if options.lora_rank else model


def with_adapters(model, rank):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def trained_parameters(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Fsdp2:
    """A model sharded block by block, master weights and reductions in fp32."""

    def __init__(self, options):
        self.model = load(options)
        dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if options.lora_rank:  # the frozen base needs no masters
            for parameter in self.model.parameters():
                parameter.data = parameter.data if parameter.requires_grad else parameter.data.to(dtype)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in blocks_of(self.model):
            if options.compile:
                block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(trained_parameters(self.model), lr=options.lr, weight_decay=0.01, fused=options.fused or None)

    def clip(self):
        norm = torch.nn.utils.clip_grad_norm_(trained_parameters(self.model), 1.0)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Unsharded:
    """Plain PyTorch: a bf16 working copy computes, fp32 masters are updated and copied back."""

    def __init__(self, options):
        masters = load(options)
        self.masters = [p.detach().clone().requires_grad_() for p in trained_parameters(masters)]
        self.model = masters.to(torch.bfloat16) if options.dtype == "bf16" else masters
        if options.compile:
            for block in blocks_of(self.model):
                block.compile()
        self.optimizer = torch.optim.AdamW(self.masters, lr=options.lr, weight_decay=0.01, fused=options.fused or None)

    def clip(self):
        for master, parameter in zip(self.masters, trained_parameters(self.model)):
            master.grad = parameter.grad.to(torch.float32)
            parameter.grad = None
        return float(torch.nn.utils.clip_grad_norm_(self.masters, 1.0))

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(self.masters, trained_parameters(self.model)):
                parameter.copy_(master)


class Run:
    def __init__(self, options):
        self.options = options
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.trained = Unsharded(options) if options.unsharded else Fsdp2(options)
        self.ids = np.fromfile(options.tokens, dtype=np.int32)
        self.losses, self.norms, self.split, self.pss = [], [], [], 0

    def batch(self, number):
        rows, length = self.options.micro_batch, self.options.seq
        first = number * rows
        ids = torch.from_numpy(self.ids[first * length:(first + rows) * length].astype(np.int64)).view(rows, length)
        labels = ids.clone()
        if self.options.supervised == "answer":
            labels[:, :-ANSWER_TOKENS] = -100
        return ids, labels

    def sample_memory(self, wanted):
        if wanted:
            self.pss = max(self.pss, resident_bytes("/proc/self/smaps_rollup", "Pss:"))

    def step(self, number, memory=False):
        start = time.perf_counter()
        loss_sum, forward, backward = 0.0, 0.0, 0.0
        for micro in range(self.options.accum):
            ids, labels = self.batch((number * self.options.accum + micro) * self.world + self.rank)
            begin = time.perf_counter()
            loss = self.trained.model(input_ids=ids, labels=labels, use_cache=False).loss / self.options.accum
            middle = time.perf_counter()
            self.sample_memory(memory)
            loss.backward()
            forward += middle - begin
            backward += time.perf_counter() - middle
            self.sample_memory(memory)
            loss_sum += loss.item()
        if self.world > 1:
            total = torch.tensor([loss_sum])
            dist.all_reduce(total)
            loss_sum = total.item() / self.world
        begin = time.perf_counter()
        self.norms.append(self.trained.clip())
        middle = time.perf_counter()
        self.trained.step()
        self.sample_memory(memory)
        end = time.perf_counter()
        self.losses.append(loss_sum)
        self.split.append({"forward": forward, "backward": backward, "clip": middle - begin, "optimizer": end - middle})
        return end - start

    def slowest(self, seconds):
        if self.world == 1:
            return seconds
        times = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        return times.tolist()

    def of_all_ranks(self, value):
        values = [None] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
            return values
        return [value]


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    if not options.unsharded:
        dist.init_process_group("gloo")
    run = Run(options)
    for number in range(options.warmup):
        run.step(number)
    seconds = run.slowest([run.step(options.warmup + i) for i in range(options.steps)])
    timed = run.split[options.warmup:]
    run.step(options.warmup + options.steps, memory=True)
    peaks = run.of_all_ranks(resident_bytes("/proc/self/status", "VmHWM:"))
    pss = run.of_all_ranks(run.pss)
    if run.rank == 0:
        tokens = options.seq * options.micro_batch * options.accum * run.world
        print(json.dumps({
            "step_seconds": {"median": median(seconds), "min": min(seconds), "max": max(seconds)},
            "all_step_seconds": seconds,
            "tokens_per_second": tokens / median(seconds),
            "split_seconds": {part: sum(step[part] for step in timed) / len(timed) for part in timed[0]},
            "peak_rank_bytes": peaks, "peak_rank_pss_bytes": pss,
            "losses": run.losses, "grad_norms": run.norms, "torch": torch.__version__}), flush=True)
    if not options.unsharded:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
