"""The sampler that runs inside vLLM's steps: it forces given tokens first and then draws with its own noise.

vLLM asks a logits processor to change logits; this one decides the token and lifts its logit above all others, so that
vLLM's greedy choice is that token. Requests are therefore sent as greedy ones. The logprobs that vLLM reports are
taken before processors run: they stay the model's own, of forced tokens too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from backend.engines.base import Sampling
from backend.engines.sampling import draw

_KEY = "pivotscope"
_ABOVE_ALL = torch.finfo(torch.float32).max


def extra_args(forced: Sequence[int], seed: int, sampling: Sampling) -> dict[str, Any]:
    """What a request carries so that `ReplaySampler` forces `forced` and then draws by `seed` and `sampling`."""
    return {_KEY: (list(forced), seed, sampling.temperature, sampling.top_p)}


@dataclass(frozen=True, slots=True)
class _Plan:
    forced: list[int]
    seed: int
    temperature: float
    top_p: float
    output: list[int]
    """The request's generated ids so far: the list that the engine itself appends to."""


def _plan(params: Any, _prompt: list[int] | None, output: list[int]) -> _Plan | None:
    carried = (params.extra_args or {}).get(_KEY) if params is not None else None
    if carried is None:
        return None
    forced, seed, temperature, top_p = carried
    return _Plan(forced, seed, temperature, top_p, output)


class ReplaySampler(LogitsProcessor):
    """Chooses the next token of each request that carries `extra_args`; others are left to vLLM."""

    produced: ClassVar[int] = 0
    """Tokens chosen for such requests in this process so far, the forced ones included."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device, self._pin_memory = device, is_pin_memory
        self._plans: dict[int, _Plan] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._plans, batch_update, _plan)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Lift the chosen tokens of `logits` [requests, vocabulary] in place; a greedy request keeps its row."""
        forced: list[tuple[int, int]] = []
        drawn: list[tuple[int, int, int]] = []
        how: list[tuple[float, float]] = []
        for row, plan in self._plans.items():
            index = len(plan.output) - len(plan.forced)
            if index < 0:
                forced.append((row, plan.forced[index]))
            elif plan.temperature > 0:
                drawn.append((row, plan.seed, index))
                how.append((plan.temperature, plan.top_p))
        ReplaySampler.produced += len(self._plans)
        if drawn:
            rows, seeds, indices = self._sent(drawn, torch.int64).unbind(1)
            temperatures, top_p = self._sent(how, torch.float64).unbind(1)
            every_row = len(drawn) == logits.shape[0] and all(row == i for i, (row, _, _) in enumerate(drawn))
            chosen = draw(logits if every_row else logits[rows], seeds, indices, temperatures, top_p)
            logits[rows, chosen] = _ABOVE_ALL
        if forced:
            rows, tokens = self._sent(forced, torch.int64).unbind(1)
            logits[rows, tokens] = _ABOVE_ALL
        return logits

    def _sent(self, rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        """Numbers on the device. From pinned memory they are copied without waiting for the model's step to end."""
        here = torch.tensor(rows, dtype=dtype, pin_memory=self._pin_memory)
        return here.to(self._device, non_blocking=True)
