"""What can be set on the vLLM engine, and what it is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.engines.options import check_type, kind_of
from backend.errors import UserError

CPU_BLOCK = 32
"""Finest block of vLLM's CPU attention, in tokens; blocks there are multiples of it."""
MIN_ROWS = 8
"""Fewest rows of a step. Kernels for one row, or for three, round unlike those for many: a rollout's last steps, a
verification and a single click must not differ from the bulk of a campaign for that."""
MIN_PREFILL = 256
"""Fewest tokens of a step that prefills what is kept, for the same reason: a piece of a prompt is computed again with
few tokens beside it, where the rollout's own prefill had many."""
CPU_ROWS = 32
"""Most rows of a step on a CPU unless the options say otherwise: more make it no faster there, and are more to try out
at start."""
COMPANION_TOKENS = 256
"""Longest that a row of no interest, there to make up `MIN_ROWS`, runs before another takes its place."""
FIXED_ROWS = 256
"""Rows of every step with `fixed_rows`, unless `max_num_seqs` says otherwise."""
_CPU_CACHE_BYTES = 1 << 30
_LONGEST = 8192
"""Most tokens of a sequence unless `max_model_len` says otherwise."""
_BATCHED_TOKENS = 8192
_KINDS: dict[str, type] = {
    "attention_backend": str,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "gpu_memory_utilization": float,
    "kv_cache_memory_bytes": int,
    "enforce_eager": bool,
    "fixed_rows": bool,
    "block_size": int,
    "max_model_len": int,
}


_REQUIRED = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_BATCH_INVARIANT")


def environment(device: str, *, batch_invariant: bool = False) -> dict[str, str]:
    """Variables that an engine process on `device` (`cpu` or `cuda`) needs before Python imports torch and vLLM.

    One process, because the sampler must see each token as it comes and the readings are taken from the scheduler;
    the model runner that accepts the sampler; logs away from stdout; one OpenMP thread, because on a CPU several of
    them in the process of the scheduler wait for each other more than they compute.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_BATCH_INVARIANT": str(int(batch_invariant)),
        "OMP_NUM_THREADS": "1",
    }
    if device == "cpu":
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def enter(variables: Mapping[str, str]) -> None:
    """Set in this process what `environment` asks for. What does not change results yields to what is set already."""
    for name, value in variables.items():
        if name in _REQUIRED:
            os.environ[name] = value
        else:
            os.environ.setdefault(name, value)


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`engine_options` of a campaign file, checked. Raises `UserError` for an unknown or wrong one."""
    for name, value in options.items():
        kind = kind_of(name, _KINDS, "vllm")
        check_type(name, value, kind)
        if kind is int and value < 1:
            raise UserError(f"engine_options: `{name}` is {value}, but must be at least 1")
    if not 0 < options.get("gpu_memory_utilization", 1) <= 1:
        raise UserError("engine_options: `gpu_memory_utilization` must be above 0 and at most 1")
    return dict(options)


def has_fixed_rows(options: Mapping[str, Any], dtype: str, device: str) -> bool:
    """Whether every step is filled up to as many rows as the largest may have.

    What `fixed_rows` asks for; by itself for float32 on a GPU, whose kernels, unlike those of bfloat16, round by the
    number of rows (on an H200, 2 of 2,398 measurements verified without). Only a prompt of more tokens than that still
    has a step of its own size. Raises `UserError` where it cannot be had.
    """
    asked = options.get("fixed_rows", dtype == "float32" and device == "cuda" and not options.get("enforce_eager"))
    if asked and device == "cpu":
        raise UserError("engine_options: `fixed_rows` is for GPUs; on a CPU steps have as many rows as round alike")
    if asked and options.get("enforce_eager"):
        raise UserError("engine_options: `fixed_rows` fills up captured graphs; leave `enforce_eager` out")
    return bool(asked)


def arguments(
    model: Path, dtype: str, options: Mapping[str, Any], device: str, context_length: int | None
) -> dict[str, Any]:
    """Keyword arguments for vLLM's `LLM`. Raises `UserError` for options that the device cannot have."""
    longest = options.get("max_model_len", min(context_length or _LONGEST, _LONGEST))
    budget = options.get("max_num_batched_tokens", max(_BATCHED_TOKENS, longest))
    if budget < longest:
        raise UserError(
            f"engine_options: `max_num_batched_tokens` is {budget}, but one step must take a whole prefill, "
            f"of up to `max_model_len` = {longest} tokens; raise the one or lower the other"
        )
    sequences = options.get("max_num_seqs", MIN_ROWS)
    if sequences < MIN_ROWS:
        raise UserError(f"engine_options: `max_num_seqs` is {sequences}, but a step has at least {MIN_ROWS} rows")
    # FlashAttention 3 spreads the keys of a sequence over processors where a step has few rows, and then adds up in
    # another order. The last rollouts of a wave are decoded in such steps, what resumes them is not.
    defaults: dict[str, Any] = {"attention_config": {"flash_attn_max_num_splits_for_cuda_graph": 1}}
    if device == "cpu":
        defaults = {"enforce_eager": True, "block_size": CPU_BLOCK, "max_num_seqs": CPU_ROWS}
        if "gpu_memory_utilization" not in options:
            defaults["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        block = options.get("block_size", CPU_BLOCK)
        if block % CPU_BLOCK:
            raise UserError(f"engine_options: `block_size` is {block}, but must be a multiple of {CPU_BLOCK} on a CPU")
    if has_fixed_rows(options, dtype, device):
        rows = options.get("max_num_seqs", FIXED_ROWS)
        # vLLM fills a step up to the next captured size; where there is one alone, every step has that.
        defaults |= {"max_num_seqs": rows, "compilation_config": {"cudagraph_capture_sizes": [rows]}}
    return {
        **defaults,
        **{name: value for name, value in options.items() if name != "fixed_rows"},
        "model": str(model),
        "dtype": dtype,
        "max_model_len": longest,
        "max_num_batched_tokens": budget,
        # A prefill is never split: where the cuts fall would depend on what else is in the batch.
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
        # The next step may only be planned once this one's tokens are known.
        "async_scheduling": False,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "trust_remote_code": False,
        "disable_log_stats": False,
        "seed": 0,
    }
