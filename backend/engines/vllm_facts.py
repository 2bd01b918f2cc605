"""Readings from a running vLLM, and holds on its scheduler: what releases keep in different places, by feature."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from backend.errors import WorkFailed


def block_size(llm: Any) -> int:
    """Tokens a KV block holds, after start. Raises `WorkFailed` for a model whose layers keep unlike caches."""
    groups = _scheduler(llm).kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise WorkFailed(
            f"vLLM keeps {len(groups)} unlike KV caches for this model, so that a prefix cannot be resumed exactly; "
            "use a dense decoder-only model"
        )
    return int(groups[0].kv_cache_spec.block_size)


def capacity(llm: Any) -> int:
    """Tokens that the KV cache holds; one block is vLLM's own."""
    return (int(_scheduler(llm).kv_cache_config.num_blocks) - 1) * block_size(llm)


def preemptions(llm: Any) -> int | None:
    """Preemptions since the process began; None when this release counts them elsewhere."""
    for metric in llm.get_metrics():
        if metric.name.removesuffix("_total") == "vllm:num_preemptions":
            return int(metric.value)
    return None


def model(llm: Any) -> Any:
    """The module that computes the logits."""
    return _runner(llm).model


def attention_backend(llm: Any) -> str | None:
    """Name of the attention kernels in use; None when it cannot be read."""
    with contextlib.suppress(AttributeError, IndexError):
        return str(_runner(llm).attn_groups[0][0].backend.get_name())
    return None


def graphs(llm: Any) -> bool | None:
    """Whether steps run as captured graphs; None when it cannot be read."""
    config = llm.llm_engine.vllm_config
    with contextlib.suppress(AttributeError):
        return not config.model_config.enforce_eager and config.compilation_config.cudagraph_mode.name != "NONE"
    return None


def limits(llm: Any) -> tuple[int, int, int]:
    """Most sequences in a step, most tokens in a step, most tokens of a sequence."""
    config = llm.llm_engine.vllm_config
    scheduler = config.scheduler_config
    return scheduler.max_num_seqs, scheduler.max_num_batched_tokens, config.model_config.max_model_len


def limit_rows(llm: Any, rows: int) -> None:
    """Let no step have more than so many sequences."""
    scheduler = _scheduler(llm)
    scheduler.max_num_running_reqs = rows
    if hasattr(scheduler, "max_num_active_reqs"):
        scheduler.max_num_active_reqs = rows


@contextlib.contextmanager
def resting(llm: Any) -> Iterator[None]:
    """Let a step leave out the running requests and compute those alone that wait; they go on in the next one."""
    scheduler = _scheduler(llm)
    held, scheduler.running = scheduler.running, []
    try:
        yield
    finally:
        scheduler.running = held + scheduler.running


def _scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def _runner(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner
