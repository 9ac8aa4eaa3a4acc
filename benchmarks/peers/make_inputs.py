"""Random weights of a configuration as a Hugging Face folder, and token ids, for both sides of a benchmark.

  make_inputs.py CONFIG_JSON OUT_DIR TOKENS
"""
import sys

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    config_path, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    config = AutoConfig.from_pretrained(config_path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
            else:
                parameter.fill_(0 if name.endswith("bias") else 1)
    model.save_pretrained(out, max_shard_size="100GB")
    np.random.default_rng(0).integers(0, config.vocab_size, count, dtype=np.int32).tofile(f"{out}/tokens.int32")


if __name__ == "__main__":
    main()
