"""PyTorch FSDP2 with one rank, on the shapes that `sherd bench` trains, in plain modules of torch.

  python3 benchmarks/gpu/peer.py --model CONFIG_JSON --device cuda [--compile] [--attention cudnn] [--all-bf16] …

MixedPrecisionPolicy computes in bf16; parameters, gradients and moments are fp32, or bf16 with --all-bf16. AdamW is fused, and the global
norm is clipped at 1.0. Weights and tokens are random. With --attention cudnn PyTorch may use no other attention: a shape that cuDNN refuses
fails. Prints one line of JSON.
"""
import argparse
import contextlib
import json
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel


class Shape:
    """What a config.json of either family says."""

    def __init__(self, fields):
        self.is_bloom = fields["model_type"] == "bloom"
        self.width = fields.get("hidden_size") or fields["n_embed"]
        self.layers = fields.get("num_hidden_layers") or fields["n_layer"]
        self.heads = fields.get("num_attention_heads") or fields["n_head"]
        self.key_heads = fields.get("num_key_value_heads") or self.heads
        self.head = self.width // self.heads
        self.inner = fields.get("intermediate_size") or 4 * self.width
        self.vocabulary = fields["vocab_size"]
        self.epsilon = fields.get("rms_norm_eps") or fields.get("layer_norm_epsilon") or 1e-5
        self.theta = fields.get("rope_theta") or 10000.0
        self.is_tied = fields.get("tie_word_embeddings", self.is_bloom)


def angles(shape, tokens, device):
    steps = shape.theta ** (-torch.arange(0, shape.head, 2, device=device, dtype=torch.float32) / shape.head)
    half = torch.outer(torch.arange(tokens, device=device, dtype=torch.float32), steps)
    return torch.cat([half, half], dim=-1)


def rotated(heads, cosine, sine):
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-second, first], dim=-1) * sine


class Llama(nn.Module):
    """A block; `extra` is (cosine, sine), each [tokens, head]."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        keys = shape.key_heads * shape.head
        self.norms = nn.ModuleList(nn.RMSNorm(shape.width, eps=shape.epsilon) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(shape.width, wide, bias=False) for wide in (shape.width, keys, keys))
        self.mixed = nn.Linear(shape.width, shape.width, bias=False)
        self.gate, self.up = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x, extra):
        normed = self.norms[0](x)
        query, key, value = (each(normed).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)
                             for each in (self.query, self.key, self.value))
        cosine, sine = (each.to(x.dtype) for each in extra)
        mixed = F.scaled_dot_product_attention(rotated(query, cosine, sine), rotated(key, cosine, sine), value, is_causal=True,
                                               enable_gqa=self.shape.key_heads != self.shape.heads)
        x = x + self.mixed(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Bloom(nn.Module):
    """A block; `extra` is ALiBi's bias with the causal mask, [heads, tokens, tokens]."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width, eps=shape.epsilon) for _ in range(2))
        self.all = nn.Linear(shape.width, 3 * shape.width)
        self.mixed = nn.Linear(shape.width, shape.width)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)

    def forward(self, x, extra):
        query, key, value = self.all(self.norms[0](x)).unflatten(-1, (self.shape.heads, 3, -1)).transpose(1, 2).unbind(3)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=extra.to(x.dtype))
        x = x + self.mixed(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


def alibi(shape, tokens, device):
    # Slopes of a number of heads that is a power of two, as those of the shapes are.
    slopes = 2.0 ** (-8.0 * torch.arange(1, shape.heads + 1, device=device) / shape.heads)
    places = torch.arange(tokens, device=device, dtype=torch.float32)
    bias = slopes[:, None, None] * (places[None, :] - places[:, None])
    return bias.masked_fill(places[None, :] > places[:, None], -math.inf)


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        norm = nn.LayerNorm if shape.is_bloom else nn.RMSNorm
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.embedding_norm = nn.LayerNorm(shape.width, eps=shape.epsilon) if shape.is_bloom else nn.Identity()
        self.blocks = nn.ModuleList((Bloom if shape.is_bloom else Llama)(shape) for _ in range(shape.layers))
        self.norm = norm(shape.width, eps=shape.epsilon)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids, extra):
        """The mean loss of each token's next one."""
        x = self.embedding_norm(self.embedding(ids))
        for block in self.blocks:
            x = block(x, extra)
        logits = self.head(self.norm(x)[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def made(shape, options):
    """A sharded model with random weights, and its optimizer. Each part is made on the device, in the dtype that it stays in."""
    with torch.device("meta"):
        model = Decoder(shape)
    if options.all_bf16:
        model.to(torch.bfloat16)
    mesh = init_device_mesh(options.device, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16 if options.all_bf16 else torch.float32)
    for number, block in enumerate(model.blocks):
        if options.checkpoint_activations:
            model.blocks[number] = block = checkpoint_wrapper(block)
        if options.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=options.device)
    if shape.is_tied:  # to_empty() makes two of one
        model.head.weight = model.embedding.weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local()
            if local.dim() == 1:
                local.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                local.normal_(0.0, 0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    return model, optimizer


def attention(options):
    """The context in which both forward and backward run, compiled or not."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if options.attention == "cudnn" else contextlib.nullcontext()


def synchronize(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def train(options):
    torch.manual_seed(0)
    shape = Shape(json.load(open(options.model)))
    model, optimizer = made(shape, options)
    if shape.is_bloom:
        extra = alibi(shape, options.seq, options.device).to(torch.bfloat16)
    else:
        turns = angles(shape, options.seq, options.device)
        extra = (turns.cos(), turns.sin())
    seconds, losses = [], []
    for _ in range(options.warmup + options.steps):
        ids = torch.randint(shape.vocabulary, (options.micro_batch, options.seq), device=options.device)
        synchronize(options)
        start = time.perf_counter()
        loss = model(ids, extra)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        synchronize(options)
        seconds.append(time.perf_counter() - start)
    return seconds[options.warmup:], losses


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a config.json")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="each block by itself")
    parser.add_argument("--attention", choices=["auto", "cudnn"], default="auto", help="auto: what PyTorch chooses")
    parser.add_argument("--all-bf16", action="store_true")
    parser.add_argument("--checkpoint-activations", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # before anything is on the GPU
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    with attention(options):
        seconds, losses = train(options)
    median = sorted(seconds)[len(seconds) // 2]
    print(json.dumps({
        "step_seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        "tokens_per_second": options.seq * options.micro_batch / median,
        "peak_rank_bytes": [torch.cuda.max_memory_reserved() if options.device == "cuda" else 0],
        "losses": losses, "torch": torch.__version__, "attention": options.attention}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
