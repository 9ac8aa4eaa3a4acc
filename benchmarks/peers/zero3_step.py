"""The peer of what rests on a disk: DeepSpeed's ZeRO-3 with optimizer and parameters on NVMe, on the CPU, on the shape, weights and
tokens that `sherd bench` trains.

Started by ../zero3. Prints one line of JSON.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--tokens", required=True, help="file of int32 ids")
    parser.add_argument("--folder", required=True, help="on the disk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    return parser.parse_args()


def settings(options):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": options.lr, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 20_000_000,
            "stage3_param_persistence_threshold": 0,  # what persists takes a buffer each
            "stage3_max_reuse_distance": 0,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 4_000_000,
            "offload_optimizer": {"device": "nvme", "nvme_path": options.folder, "buffer_count": 12, "pipeline_read": True,
                                  "pipeline_write": True},
            "offload_param": {"device": "nvme", "nvme_path": options.folder, "buffer_count": 24, "buffer_size": 30_000_000,
                              "max_in_cpu": 0},
        },
        "aio": {"block_size": 2**20, "queue_depth": 32, "thread_count": 1, "single_submit": False, "overlap_events": True},
        "wall_clock_breakdown": False,
    }


def status_bytes(file, field):
    with open(file) as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def bytes_in(folder):
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    deepspeed.init_distributed(dist_backend="gloo")
    config = AutoConfig.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, config=config, dtype=torch.bfloat16, attn_implementation="sdpa")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings(options))
    ids = np.fromfile(options.tokens, dtype=np.int32)
    seconds, losses, pss = [], [], 0

    def sample():
        return max(pss, status_bytes("/proc/self/smaps_rollup", "Pss:"))

    for number in range(options.warmup + options.steps + 1):
        batch = torch.from_numpy(ids[number * options.seq:(number + 1) * options.seq].astype(np.int64)).view(1, options.seq)
        measures = number == options.warmup + options.steps
        start = time.perf_counter()
        loss = engine(input_ids=batch, labels=batch, use_cache=False).loss
        pss = sample() if measures else pss
        engine.backward(loss)
        pss = sample() if measures else pss
        engine.step()
        pss = sample() if measures else pss
        losses.append(loss.item())
        print(f"step {number + 1}: {time.perf_counter() - start:.1f} s, loss {losses[-1]:.4f}", file=sys.stderr, flush=True)
        if options.warmup <= number < options.warmup + options.steps:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({
        "step_seconds": {"median": sorted(seconds)[len(seconds) // 2], "min": min(seconds), "max": max(seconds)},
        "peak_rank_pss_bytes": [pss], "peak_rank_bytes": [status_bytes("/proc/self/status", "VmHWM:")],
        "bytes_on_disk": bytes_in(options.folder), "losses": losses, "deepspeed": deepspeed.__version__,
        "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
