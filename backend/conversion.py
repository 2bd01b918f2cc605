"""Making plain bfloat16 checkpoints, in a process of its own since it imports torch.

`python -m backend.conversion gguf GGUF FOLDER --eos ID` dequantises a GGUF;
`python -m backend.conversion merge BASE ADAPTER FOLDER` adds a LoRA adapter to a checkpoint's weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_OTHER_ARITHMETIC = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")


def convert(gguf: Path, folder: Path, eos_id: int) -> None:
    """Write the dequantised checkpoint and its tokenizer to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source, member = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=member)
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=member, dtype=torch.bfloat16)
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


def merge(base: Path, adapter: Path, folder: Path, eos_id: int | None = None) -> None:
    """Write to `folder` the checkpoint `base` with the PEFT LoRA `adapter` merged into its weights.

    `eos_id` ends sequences of the checkpoint as well: what the adapter was trained to end its answers with. Raises
    ValueError for an adapter that is not a plain LoRA, or not one of this base.
    """
    from safetensors.torch import load_file, save_file

    scale = _scale(json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8")))
    updates = load_file(adapter / ADAPTER_WEIGHTS)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for path in sorted(base.glob("*.safetensors")):
        weights = load_file(path)
        for name, weight in weights.items():
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{stem}.lora_A.weight" in updates:
                down, up = updates.pop(f"{stem}.lora_A.weight"), updates.pop(f"{stem}.lora_B.weight")
                weights[name] = merged(weight, down, up, scale)
        save_file(weights, folder / path.name, metadata={"format": "pt"})
    if updates:
        raise ValueError(f"the base has no weight for {min(updates)} of the adapter")
    if eos_id is not None:
        _add_end(folder / "generation_config.json", eos_id)


def _add_end(path: Path, eos_id: int) -> None:
    """Have one more token end sequences."""
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known = config.get("eos_token_id")
    ends = {eos_id, *(known if isinstance(known, list) else [known])} - {None}
    path.write_text(json.dumps(config | {"eos_token_id": sorted(ends)}, indent=2) + "\n", encoding="utf-8")


def merged(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """W + scale · B · A, computed in float32 and rounded once to W's own dtype.

    Args:
        weight: W, [out, in].
        down: A, [r, in].
        up: B, [out, r].
        scale: alpha / r.
    """
    update = up.float() @ down.float()
    return (weight.float() + scale * update).to(weight.dtype)


def _scale(config: dict[str, Any]) -> float:
    """alpha / r of an adapter's config, once it is sure that this is the whole arithmetic."""
    unusual = [key for key in _OTHER_ARITHMETIC if config.get(key)]
    if config.get("peft_type") != "LORA" or unusual or config.get("bias", "none") != "none":
        raise ValueError(f"the adapter is not a plain LoRA ({', '.join(unusual) or 'see its ' + ADAPTER_CONFIG})")
    return float(config["lora_alpha"]) / float(config["r"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    gguf = kinds.add_parser("gguf")
    gguf.add_argument("gguf", type=Path)
    gguf.add_argument("folder", type=Path)
    gguf.add_argument("--eos", type=int, required=True)
    lora = kinds.add_parser("merge")
    lora.add_argument("base", type=Path)
    lora.add_argument("adapter", type=Path)
    lora.add_argument("folder", type=Path)
    lora.add_argument("--eos", type=int)
    args = parser.parse_args()
    if args.kind == "gguf":
        convert(args.gguf, args.folder, args.eos)
    else:
        merge(args.base, args.adapter, args.folder, args.eos)
    return 0


if __name__ == "__main__":
    sys.exit(main())
