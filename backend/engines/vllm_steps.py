"""Running requests through vLLM's steps: one call, many requests, cancellable between any two steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from backend.engines.base import Control, Sampling
from backend.engines.vllm_facts import resting
from backend.engines.vllm_options import COMPANION_TOKENS, MIN_PREFILL, MIN_ROWS
from backend.engines.vllm_parts import SPARE_ROWS, Admission
from backend.engines.vllm_sampler import ReplaySampler, extra_args
from backend.errors import WorkFailed
from backend.records import Finish, TopK


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
    prefill: int = 0
    """Prompt tokens to be computed in a step that only prefills: kernels for such a step round unlike those for one
    that decodes. 0 where a single token is missing that was decoded, or where it does not matter."""


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
    """Requests on one `LLM`, in steps of `MIN_ROWS` to `rows` rows: companions of no interest fill up what is missing.

    No step prefills more than `tokens` of the requests that must not be prefilled beside others.
    """

    def __init__(self, llm: LLM, rows: int, tokens: int) -> None:
        self._llm, self._engine = llm, llm.llm_engine
        self._rows, self._tokens = rows, tokens
        self._companions: set[str] = set()
        self._numbers = itertools.count()

    def run(self, requests: Sequence[Request], control: Control) -> list[Outcome | None]:
        """Outcomes aligned with `requests`, None for one that was lost. When `control` raises, all are aborted."""
        live: dict[str, int] = {}
        outcomes: list[Outcome | None] = [None] * len(requests)
        admission = Admission([request.prefill for request in requests], self._rows, self._tokens)
        try:
            while live or admission:
                started, alone = admission.start(len(live) + len(self._companions))
                for index in started:
                    live[self._add(requests[index])] = index
                if alone:
                    self._fill_up_prefill([requests[index].prefill for index in started])
                else:
                    self._fill_up(len(live) + len(self._companions))
                before = ReplaySampler.produced
                for output in self._step(alone):
                    if output.request_id in live:
                        index = live.pop(output.request_id)
                        outcomes[index] = _outcome(output, requests[index])
                    self._companions.discard(output.request_id)
                control.tick(ReplaySampler.produced - before)
        finally:
            self._engine.abort_request([*live, *self._companions])
            self._companions.clear()
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

    def _step(self, alone: bool) -> list[Any]:
        """What finished in the next step, in which only what has not yet run takes part if `alone`."""
        with resting(self._llm) if alone else nullcontext():
            return list(self._engine.step())

    def _fill_up(self, rows: int) -> None:
        for _ in range(rows, MIN_ROWS):
            self._accompany(1, COMPANION_TOKENS)

    def _fill_up_prefill(self, prefills: Sequence[int]) -> None:
        """Add what is missing in rows and tokens, for this step alone."""
        missing = max(min(MIN_PREFILL, self._tokens) - sum(prefills), 0)
        count = max(MIN_ROWS - len(prefills), min(missing, SPARE_ROWS))
        each, left = divmod(missing, count) if count else (0, 0)
        for index in range(count):
            self._accompany(max(1, each + (index < left)), 1)

    def _accompany(self, prompt: int, tokens: int) -> None:
        """Add a row of no interest: so long a prompt, and that many tokens after it."""
        name = f"companion-{next(self._numbers)}"
        params = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(name, _prompt([0] * prompt, name), params)
        self._companions.add(name)


def _prompt(ids: list[int], salt: str) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=ids, cache_salt=salt)


def _outcome(output: Any, request: Request) -> Outcome | None:
    """Unpack a finished output. At each position the flat list holds the chosen token and then the top ones."""
    completion, top_k = output.outputs[0], request.top_k
    if completion.finish_reason not in {"stop", "length"}:
        return None
    flat, ids = completion.logprobs, list(completion.token_ids)
    if ids[: len(request.forced)] != request.forced:
        raise WorkFailed(
            "this vLLM did not decode the tokens it was given; use a release that requirements-vllm.txt names"
        )
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
