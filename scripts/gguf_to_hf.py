#!/usr/bin/env python3
"""gguf_to_hf.py MODEL.gguf OUT_DIR: writes a Llama that is stored as GGUF into OUT_DIR as a Hugging Face folder.

For models with SmolLM's tokenizer; a metadata field or a tensor beyond what is written here ends the program (65), since
it could change what the model computes. Needs the packages of scripts/gguf-requirements.txt, and no torch.

Weights become fp32: a value of a Q4_1 or Q8_0 block is a product and a sum of fp16 numbers and small integers, which bf16
(8 bits) would round once more, and fp16 could not always hold. So the folder holds the very numbers that readers of GGUF
compute with, and a comparison with them measures the computation alone. The price is 538 MB for 135 M parameters instead
of 269; training keeps fp32 masters anyway.
"""
import json
import pathlib
import sys

import gguf
import numpy
from safetensors import SafetensorError
from safetensors.numpy import save_file

EX_DATA, EX_OUTPUT = 65, 73
SPECIAL_TOKEN = int(gguf.TokenType.CONTROL)
FIELDS = {
    "llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
    "llama.attention.head_count", "llama.attention.head_count_kv", "llama.rope.freq_base",
    "llama.attention.layer_norm_rms_epsilon", "llama.vocab_size", "llama.rope.dimension_count",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.model", "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
    "tokenizer.chat_template",
}
# What the folder is written for: other values would need other files.
FIXED = {
    "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False,
}
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


class Refused(Exception):
    """The file holds something that is not implemented here."""


class Metadata:
    """The fields of the file by name, each known to this program."""

    def __init__(self, reader: gguf.GGUFReader):
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        for name, value in FIXED.items():
            if self.fields.get(name) != value:
                raise Refused(f"{name} is {self.fields.get(name)!r}, and only {value!r} is implemented")
        unknown = [name for name in self.fields if name.startswith(("llama.", "tokenizer.")) and name not in FIELDS]
        if unknown:
            raise Refused(f"{unknown[0]} is not implemented")

    def __getitem__(self, name: str):
        if name not in self.fields:
            raise Refused(f"{name} is missing")
        return self.fields[name]

    def number(self, name: str) -> float:
        """A field stored as fp32, as the shortest decimal that means the same fp32: 1e-05, not 9.999999747378752e-06."""
        return float(str(numpy.float32(self[name])))


def config(metadata: Metadata) -> dict:
    heads, hidden = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
    if metadata["llama.rope.dimension_count"] * heads != hidden:
        raise Refused(f"llama.rope.dimension_count is not embedding_length / head_count, {hidden} / {heads}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "rms_norm_eps": metadata.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_scaling": None,
        "rope_theta": metadata.number("llama.rope.freq_base"),
        "tie_word_embeddings": True,  # the file has no output.weight; weights() refuses one
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": metadata["llama.vocab_size"],
    }


def tokenizer(metadata: Metadata) -> dict:
    """tokenizer.json. The pre-tokenizer is what "smollm" stands for: each digit alone, then GPT-2's pieces as bytes."""
    tokens = metadata["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": id, "content": token, **flags} for id, token in special_tokens(metadata)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def special_tokens(metadata: Metadata) -> list[tuple[int, str]]:
    types = metadata["tokenizer.ggml.token_type"]
    return [(id, token) for id, token in enumerate(metadata["tokenizer.ggml.tokens"]) if types[id] == SPECIAL_TOKEN]


def named_tokens(metadata: Metadata) -> dict:
    fields = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokens = metadata["tokenizer.ggml.tokens"]
    return {name: tokens[metadata[f"tokenizer.ggml.{field}_token_id"]] for name, field in fields.items()}


def tokenizer_config(metadata: Metadata) -> dict:
    return named_tokens(metadata) | {
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",  # tokenizer.json as it is
    }


def generation_config(metadata: Metadata) -> dict:
    fields = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: metadata[f"tokenizer.ggml.{field}_token_id"] for name, field in fields.items()}


def in_halves(rows: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rows [heads * d, in] of a query or key projection, as Hugging Face orders them.

    GGUF rotates rows 2i and 2i + 1 of a head together, Hugging Face rows i and i + d/2: GGUF's converter moved the one to the
    place of the other, and this moves them back.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def weights(reader: gguf.GGUFReader, metadata: Metadata) -> dict[str, numpy.ndarray]:
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for layer in range(metadata["llama.block_count"]):
        names |= {f"blk.{layer}.{theirs}.weight": f"model.layers.{layer}.{name}.weight"
                  for theirs, name in BLOCK_TENSORS.items()}
    heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}
    found = {}
    for tensor in reader.tensors:
        if tensor.name not in names:
            raise Refused(f"tensor {tensor.name} is not implemented")
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32, copy=False)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = in_halves(values, heads[kind])
        found[names.pop(tensor.name)] = numpy.ascontiguousarray(values)
    if names:
        raise Refused(f"tensor {next(iter(names))} is missing")
    return found


def write_folder(path: pathlib.Path, out: pathlib.Path) -> None:
    reader = gguf.GGUFReader(path)
    metadata = Metadata(reader)
    files = {
        "config.json": config(metadata),
        "generation_config.json": generation_config(metadata),
        "tokenizer.json": tokenizer(metadata),
        "tokenizer_config.json": tokenizer_config(metadata),
        "special_tokens_map.json": named_tokens(metadata),
    }
    tensors = weights(reader, metadata)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = json.dumps(content, indent=None if name == "tokenizer.json" else 2, ensure_ascii=False)
        (out / name).write_text(text + "\n", encoding="utf-8")
    file = out / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod((out / "config.json").stat().st_mode)  # save_file lets its owner alone read it


def main() -> None:
    path, out = map(pathlib.Path, sys.argv[1:])
    try:
        write_folder(path, out)
    except Refused as refused:
        print(f"gguf_to_hf: {path}: {refused}", file=sys.stderr)
        sys.exit(EX_DATA)
    except (OSError, SafetensorError) as error:  # "No space left on device" and its like
        print(f"gguf_to_hf: {out} cannot be written: {error}", file=sys.stderr)
        sys.exit(EX_OUTPUT)


if __name__ == "__main__":
    main()
