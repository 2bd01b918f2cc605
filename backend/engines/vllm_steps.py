"""Running requests through vLLM's steps: one call, many requests, cancellable between any two steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from backend.engines.base import Control, Sampling
from backend.engines.vllm_sampler import ReplaySampler, extra_args
from backend.records import Finish, TopK

_COMPANION_TOKENS = 256
"""Length of a companion; another follows it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence: `prompt` is prefilled, `forced` decoded token by token, and then up to `max_tokens` drawn."""

    prompt: list[int]
    forced: list[int]
    salt: str
    """Requests share cached blocks only under the same salt."""
    seed: int
    sampling: Sampling
    top_k: int
    """How many of the most probable tokens to report at each position."""
    stops: list[int]
    """Ids that end the sequence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request; lists run over the forced and the drawn tokens."""

    ids: list[int]
    logprobs: list[float]
    """Raw log probability of each of `ids`, nats."""
    top: list[TopK]
    finish_reason: Finish
    cached: int | None
    """Prompt tokens that were found in the KV cache."""


class Steps:
    """Requests on one `LLM`. With `companion`, a request of no interest keeps every step at two rows or more.

    The kernels for one row and for several round differently. A rollout's last steps, a verification and a single
    click would otherwise have one row where a campaign has many.
    """

    def __init__(self, llm: LLM, companion: bool) -> None:
        self._engine = llm.llm_engine
        self._companion = companion
        self._accompanied = ""
        self._numbers = itertools.count()

    def run(self, requests: Sequence[Request], control: Control) -> list[Outcome | None]:
        """Outcomes aligned with `requests`, None for one that was lost. When `control` raises, all are aborted."""
        live: dict[str, int] = {}
        outcomes: list[Outcome | None] = [None] * len(requests)
        try:
            self._accompany()
            for index, request in enumerate(requests):
                live[self._add(request)] = index
            while live:
                before = ReplaySampler.produced
                for output in self._engine.step():
                    index = live.pop(output.request_id, -1)
                    if index >= 0:
                        outcomes[index] = _outcome(output, requests[index].top_k)
                    elif output.request_id == self._accompanied:
                        self._accompanied = ""
                self._accompany()
                control.tick(ReplaySampler.produced - before)
        finally:
            self._engine.abort_request([*live, *filter(None, [self._accompanied])])
            self._accompanied = ""
        return outcomes

    def _add(self, request: Request) -> str:
        name = str(next(self._numbers))
        params = SamplingParams(
            temperature=0,
            max_tokens=len(request.forced) + request.sampling.max_tokens,
            logprobs=request.top_k,
            flat_logprobs=True,
            ignore_eos=True,
            stop_token_ids=request.stops,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=extra_args(request.forced, request.seed, request.sampling),
        )
        self._engine.add_request(name, _prompt(request.prompt, request.salt), params)
        return name

    def _accompany(self) -> None:
        if not self._companion or self._accompanied:
            return
        name = f"companion-{next(self._numbers)}"
        params = SamplingParams(
            temperature=0,
            max_tokens=_COMPANION_TOKENS,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(name, _prompt([0], name), params)
        self._accompanied = name


def _prompt(ids: list[int], salt: str) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=ids, cache_salt=salt)


def _outcome(output: Any, top_k: int) -> Outcome | None:
    """Unpack a finished output. At each position the flat list holds the chosen token and then the top ones."""
    completion = output.outputs[0]
    if completion.finish_reason not in {"stop", "length"}:
        return None
    flat, ids = completion.logprobs, list(completion.token_ids)
    starts = flat.start_indices[: len(ids)]
    return Outcome(
        ids=ids,
        logprobs=[flat.logprobs[start] for start in starts],
        top=[
            TopK(flat.token_ids[start + 1 : start + 1 + top_k], flat.logprobs[start + 1 : start + 1 + top_k])
            for start in starts
        ]
        if top_k
        else [],
        finish_reason=completion.finish_reason,
        cached=output.num_cached_tokens,
    )
