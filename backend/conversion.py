"""GGUF → bfloat16 safetensors, in a process of its own since it imports torch: `python -m backend.conversion GGUF FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def convert(gguf: Path, folder: Path, eos_id: int) -> None:
    """Write the dequantised checkpoint and its tokenizer to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source, member = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=member)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=member, dtype=torch.bfloat16)
    # The loaded weights are dense: leaving the quantiser in place would make save_pretrained refuse, and a
    # quantization_config in the saved config would make every reader look for packed weights.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.eos_token_id = eos_id
    model.generation_config = GenerationConfig(
        eos_token_id=eos_id, bos_token_id=model.config.bos_token_id, pad_token_id=eos_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--eos", type=int, required=True)
    args = parser.parse_args()
    convert(args.gguf, args.folder, args.eos)
    return 0


if __name__ == "__main__":
    sys.exit(main())
