"""Starting vLLM: the device, the environment before the import, and the reasons why it does not start."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from backend.engines.vllm_options import enter, environment
from backend.errors import UserError, WorkFailed


def find_device(batch_invariant: bool) -> str:
    """`cuda` or `cpu`, with the environment set up for it. Raises where the mode cannot be had."""
    loaded = sys.modules.get("vllm.envs")
    if loaded is not None and bool(loaded.VLLM_BATCH_INVARIANT) != batch_invariant:
        raise WorkFailed("this process has loaded vLLM for another `batch_invariant` before; start a new worker")
    enter(environment("cuda", batch_invariant=batch_invariant))  # before torch is imported, which tells the device
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if batch_invariant:
        raise UserError("batch_invariant: vLLM has this mode on CUDA GPUs alone; leave it out on a CPU")
    enter(environment("cpu"))
    return "cpu"


def start(name: str, arguments: Mapping[str, Any]) -> Any:
    """An `LLM` with our sampler. Raises `WorkFailed` with vLLM's reason where it cannot be imported or started."""
    try:
        from vllm import LLM

        from backend.engines.vllm_sampler import ReplaySampler
    except ImportError as error:
        raise WorkFailed(
            f"vLLM cannot be imported by this Python ({error}); see requirements-vllm.txt or requirements-vllm-cpu.txt"
        ) from None
    try:
        return LLM(**arguments, logits_processors=[ReplaySampler])
    except Exception as error:  # its checks, kernels and allocators raise what they like
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else type(error).__name__
        raise WorkFailed(f"vLLM did not start with {name}: {reason}") from error
