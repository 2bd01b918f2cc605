"""What a checkpoint's folder holds, read from its files without loading a weight."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backend.errors import UserError

_RECURRENT = {
    "attention_window_size",
    "attn_layer_indices",
    "block_types",
    "layers_block_type",
    "rescale_every",
    "state_size",
}
"""Config keys that only models with recurrent layers have, beside those about their state-space parts."""


def check_architecture(folder: Path) -> dict[str, Any]:
    """The checkpoint's config, or `UserError` where exact resume is not defined for its architecture."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: cannot be read as JSON ({error})") from None
    reason = _unsupported(config)
    if reason:
        architecture = (config.get("architectures") or [config.get("model_type", "this model")])[0]
        raise UserError(
            f"{architecture} {reason}, so a prefix cannot be resumed exactly; use a dense decoder-only model"
        )
    return config


def _unsupported(config: dict[str, Any]) -> str | None:
    """Why a prefix of such a model cannot be resumed exactly, as the end of a sentence; None where it can be."""
    if config.get("is_encoder_decoder"):
        return "is an encoder-decoder"
    layer_types = set(config.get("layer_types") or [])
    recurrent = layer_types - {"full_attention", "sliding_attention", "chunked_attention"}
    if recurrent or any(key in _RECURRENT or key.startswith(("mamba_", "ssm_")) for key in config):
        return "has recurrent layers, alone or between attention layers"
    window, context = config.get("sliding_window"), config.get("max_position_embeddings", 1 << 62)
    slides = "sliding_attention" in layer_types or (window and config.get("use_sliding_window", True))
    if slides and not (window and window >= context):  # a window as wide as the context never slides
        return f"has sliding-window attention ({window or 'some'} tokens)"
    if "chunked_attention" in layer_types or "local" in (config.get("attention_layers") or []):
        return "has local attention layers"
    architectures = config.get("architectures") or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return "is not a causal language model"
    return None


def count_parameters(files: Iterable[Path]) -> tuple[int, list[str]]:
    """Parameters and dtypes from the safetensors headers (8-byte length, then JSON), without loading a weight."""
    total, dtypes = 0, set()
    names = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}
    for path in files:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for key, tensor in header.items():
            if key != "__metadata__":
                size = 1
                for extent in tensor["shape"]:
                    size *= extent
                total += size
                dtypes.add(names.get(tensor["dtype"], tensor["dtype"]))
    return total, sorted(dtypes)


def sha256_of(files: Iterable[Path]) -> str:
    """Hash over the files' bytes, one after another."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
