"""The engine for campaigns: vLLM, resumed from the KV blocks that a rollout itself wrote while decoding.

vLLM keeps full blocks only. A prefix of any length is resumed exactly by prompting with the rollout's ids up to the
first token after the last full block and *forcing* the rest, the arm's token included, through decode steps like those
that wrote them. Each rollout has a salt of its own, so that no sibling's blocks are ever used, and each re-fed request
one of its own, so that nothing is found for it.

Kernels for a few rows round unlike those for many, so that no step has fewer than `vllm_options.MIN_ROWS`.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.base import (
    Batch,
    Continuation,
    ContinuationRequest,
    Control,
    EngineInfo,
    Point,
    Quiet,
    Rebuilt,
    RolloutRequest,
    Sampling,
    Verification,
)
from backend.engines.codec import Codec
from backend.engines.comparison import compare_tops
from backend.engines.vllm_options import COMPANION_TOKENS, MIN_ROWS, arguments, read_options
from backend.engines.vllm_parts import parts
from backend.engines.vllm_start import find_device, processor_name, start
from backend.errors import OutOfMemory, UserError, WorkFailed
from backend.models import check_architecture, locate
from backend.records import TOP_K, Source, Trace

if TYPE_CHECKING:
    from backend.engines.vllm_steps import Outcome, Request

_FORCED = Sampling(temperature=0.0, top_p=1.0, max_tokens=0)
"""Of requests whose every token is given."""
_NEXT = Sampling(temperature=0.0, top_p=1.0, max_tokens=1)
"""Of requests whose next-token distribution is wanted."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A rollout whose blocks were written by decoding."""

    salt: str
    prompt_ids: list[int]
    ids: list[int]

    @property
    def written(self) -> int:
        """Tokens whose keys and values were computed: all but the last, which was never fed."""
        return len(self.prompt_ids) + len(self.ids) - 1


class VllmEngine:
    """vLLM under the engine contract. Construct it where torch is not loaded yet, or was loaded under `environment`.

    `model` is a checkpoint folder, `options` are a campaign's `engine_options`. Raises `UserError` for an option or a
    model that cannot be had, `WorkFailed` where vLLM is missing or does not start.
    """

    def __init__(
        self, model: Path, dtype: str, *, batch_invariant: bool, options: Mapping[str, Any], name: str
    ) -> None:
        checked = read_options(options)
        config = check_architecture(model)
        device = find_device(batch_invariant)
        self._name, self._model, self._batch_invariant, self._device = name, locate(str(model)), batch_invariant, device
        self._codec = Codec(model)
        started = arguments(model, dtype, checked, device, config.get("max_position_embeddings"))
        self._llm: Any = start(name, started)
        # These import torch and vLLM, which `start` has to come before.
        from backend.engines import vllm_facts, vllm_steps
        from backend.engines.precision import has_bfloat16_units
        from backend.engines.vllm_precision import accumulate_in_float32

        self._facts, self._request = vllm_facts, vllm_steps.Request
        self._block = vllm_facts.block_size(self._llm)
        self._sequences, self._batched_tokens, self._longest = vllm_facts.limits(self._llm)
        self._vocabulary = int(self._llm.llm_engine.vllm_config.model_config.get_vocab_size())
        self._steps = vllm_steps.Steps(self._llm)
        self._matmul = "native"
        if dtype == "bfloat16" and device == "cpu" and not has_bfloat16_units():
            accumulate_in_float32(vllm_facts.model(self._llm))
            self._matmul = "float32 accumulation, rounded to bfloat16"
        self._kept: dict[str, _Kept] = {}
        self._salts = itertools.count()

    def info(self) -> EngineInfo:
        import torch
        import vllm

        cuda, model = self._device == "cuda", self._model
        return EngineInfo(
            engine="vllm",
            engine_version=vllm.__version__,
            model=self._name,
            model_sha256=model.sha256 if model else None,
            architecture=model.architecture if model else None,
            parameters=model.parameters if model else None,
            dtype=str(self._llm.llm_engine.vllm_config.model_config.dtype).removeprefix("torch."),
            device=self._device,
            device_name=torch.cuda.get_device_name() if cuda else processor_name(),
            block_size=self._block,
            attention_backend=self._facts.attention_backend(self._llm),
            max_num_seqs=self._sequences,
            max_num_batched_tokens=self._batched_tokens,
            rows_per_step=None,
            batch_invariant=self._batch_invariant,
            graphs=self._facts.graphs(self._llm),
            threads=None if cuda else torch.get_num_threads(),
            torch_version=torch.__version__,
            context_length=self._longest,
            tokenizer_sha256=self._codec.sha256,
            eos_ids=self._codec.eos_ids,
            special_ids=self._codec.special_ids,
            matmul=self._matmul,
        )

    def capacity(self) -> int:
        """Tokens that the KV cache holds, in kept rollouts and running requests together.

        vLLM evicts the blocks that were used longest ago without a word; the cached tokens then fall short of the
        expected ones. Kept states and running requests have to fit into this; a resumed call then keeps the states in
        the cache by itself. Re-fed requests write blocks of their own, finished ones' included, in place of the oldest:
        let them come after all exact passes of a wave.
        """
        return max(0, self._facts.capacity(self._llm) - MIN_ROWS * self._in_blocks(COMPANION_TOKENS + 1))

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        handles = [request.handle for request in requests]
        if len(set(handles)) != len(handles):
            raise UserError("two rollouts of one call have the same handle; give each its own")
        salts = [self._salt(handle) for handle in handles]
        outcomes = self._run(
            [
                self._request(
                    self._checked(request.prompt_ids),
                    [],
                    salt,
                    request.seed,
                    request.sampling,
                    TOP_K,
                    self._codec.eos_ids,
                )
                for request, salt in zip(requests, salts, strict=True)
            ],
            control,
        )
        traces = []
        for request, salt, outcome in zip(requests, salts, outcomes, strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the rollout `{request.handle}`; run it again")
            self._kept[request.handle] = _Kept(salt, list(request.prompt_ids), outcome.ids)
            traces.append(
                Trace(
                    request.handle,
                    list(request.prompt_ids),
                    outcome.ids,
                    outcome.logprobs,
                    outcome.top,
                    outcome.finish_reason,
                )
            )
        return traces

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        wanted = [self._resumed(request) if source == "exact" else self._refed(request) for request in requests]
        before = self._facts.preemptions(self._llm)
        outcomes: list[Outcome | None] = []
        for part in self._parts(requests, wanted) if source == "exact" else [slice(len(wanted))]:
            if source == "exact":
                self._touch(request.handle for request in requests[part.start :])
            for together in [[one] for one in wanted[part]] if serial else [wanted[part]]:
                outcomes += self._run(together, control)
        after = self._facts.preemptions(self._llm)
        continuations: list[Continuation | None] = []
        for request, sent, outcome in zip(requests, wanted, outcomes, strict=True):
            if outcome is None:
                continuations.append(None)
                continue
            skip = len(sent.forced)
            expected = self._expected(self._kept[request.handle], sent) if source == "exact" else 0
            continuations.append(
                Continuation(
                    outcome.ids[skip:],
                    outcome.logprobs[skip:],
                    outcome.finish_reason,
                    expected,
                    outcome.cached,
                )
            )
        return Batch(continuations, None if before is None or after is None else after - before)

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        wanted = []
        for point in points:
            kept, line = self._prefix(point.handle, point.position)
            cut = max((point.position - 1) // self._block * self._block, len(kept.prompt_ids) - 1) + 1
            wanted.append(self._request(line[:cut], line[cut:], kept.salt, 0, _NEXT, TOP_K, []))
        found = []
        for point, sent, outcome in zip(points, wanted, self._run(wanted, control), strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the verification of `{point.handle}` at {point.position}; run it again")
            expected = self._expected(self._kept[point.handle], sent)
            found.append(Verification(outcome.top[len(sent.forced)], expected, outcome.cached))
        return found

    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        wanted = []
        for trace in traces:
            if not trace.ids:
                raise UserError(f"rollout `{trace.handle}` has no generated tokens; there is nothing to rebuild")
            self._checked(trace.prompt_ids + trace.ids)
            salt = self._salt(trace.handle)
            wanted.append(self._request(trace.prompt_ids, trace.ids, salt, 0, _FORCED, TOP_K, []))
        verdicts = []
        for trace, sent, outcome in zip(traces, wanted, self._run(wanted, control), strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the rebuilding of `{trace.handle}`; run it again")
            self._kept[trace.handle] = _Kept(sent.salt, list(trace.prompt_ids), list(trace.ids))
            verdicts.append(compare_tops(trace.handle, len(trace.prompt_ids), trace.top, outcome.top))
        return verdicts

    def holds(self, handles: Sequence[str]) -> list[bool]:
        """Which handles have kept state. vLLM does not say what it evicted: the cached tokens of a request do."""
        return [handle in self._kept for handle in handles]

    def release(self, handles: Sequence[str]) -> None:
        """Forget the handles' salts, without which their blocks are never found again and fall to eviction."""
        for handle in handles:
            self._kept.pop(handle, None)

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        return self._codec.prompt_ids(messages, plain)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return self._codec.token_bytes(ids)

    def close(self) -> None:
        if self._llm is None:
            return
        self._kept.clear()
        self._llm.llm_engine.engine_core.shutdown()
        del self._steps
        self._llm = None
        gc.collect()
        if self._device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _run(self, requests: Sequence[Request], control: Control) -> list[Outcome | None]:
        import torch

        try:
            return self._steps.run(requests, control)
        except torch.OutOfMemoryError:
            raise OutOfMemory(f"the device has no memory for {len(requests)} requests at once") from None

    def _parts(self, requests: Sequence[ContinuationRequest], wanted: Sequence[Request]) -> list[slice]:
        """Stretches of resumed requests after which the kept states are still in the cache."""
        room = self.capacity() - sum(self._in_blocks(kept.written) for kept in self._kept.values())
        costs = []
        for request, sent in zip(requests, wanted, strict=True):
            longest = len(sent.prompt) + len(sent.forced) + sent.sampling.max_tokens
            costs.append(self._in_blocks(longest) - self._expected(self._kept[request.handle], sent))
        return list(parts(costs, room))

    def _touch(self, handles: Iterable[str]) -> None:
        """Use the full blocks of these states, so that vLLM counts them among the latest used."""
        wanted = []
        for handle in dict.fromkeys(handles):
            kept = self._kept[handle]
            full = kept.written // self._block * self._block
            line = [*kept.prompt_ids, *kept.ids][: full + 1]
            wanted.append(self._request(line, [], kept.salt, 0, _NEXT, 0, []))
        self._run(wanted, Quiet())

    def _in_blocks(self, tokens: int) -> int:
        """Tokens rounded up to full blocks."""
        return -(-tokens // self._block) * self._block

    def _resumed(self, request: ContinuationRequest) -> Request:
        """The request that finds the rollout's full blocks before the position and decodes the rest."""
        kept, line = self._arm(request)
        cut = max(request.position // self._block * self._block, len(kept.prompt_ids) - 1) + 1
        return self._request(line[:cut], line[cut:], kept.salt, request.seed, request.sampling, 0, self._codec.eos_ids)

    def _refed(self, request: ContinuationRequest) -> Request:
        """The request that prefills prefix and arm's token under a salt that nothing was written under."""
        _, line = self._arm(request)
        salt = self._salt("refeed")
        return self._request(line, [], salt, request.seed, request.sampling, 0, self._codec.eos_ids)

    def _arm(self, request: ContinuationRequest) -> tuple[_Kept, list[int]]:
        kept, prefix = self._prefix(request.handle, request.position)
        line = self._checked([*prefix, request.token])
        ended = next((token for token in line[len(kept.prompt_ids) :] if token in self._codec.eos_ids), None)
        if ended is not None:
            raise UserError(
                f"token {ended} ends the sequence at or before position {request.position} of `{request.handle}`; "
                "nothing follows it"
            )
        return kept, line

    def _prefix(self, handle: str, position: int) -> tuple[_Kept, list[int]]:
        """A kept rollout and its ids before `position`."""
        kept = self._kept.get(handle)
        if kept is None:
            raise UserError(f"no state is kept under the handle `{handle}`; sample or rebuild the rollout first")
        start, end = len(kept.prompt_ids), len(kept.prompt_ids) + len(kept.ids)
        if not start <= position <= end:
            raise UserError(f"position {position} of `{handle}` is not between {start} and {end}")
        return kept, (kept.prompt_ids + kept.ids)[:position]

    def _expected(self, kept: _Kept, sent: Request) -> int:
        """Tokens vLLM finds for a prompt: its full blocks but the last token's, as far as the rollout wrote them."""
        return min(len(sent.prompt) - 1, kept.written) // self._block * self._block

    def _checked(self, ids: list[int]) -> list[int]:
        """Ids that fit the model. Raises `UserError` otherwise."""
        if not ids:
            raise UserError("a request has no token ids; give a prompt")
        if not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise UserError(f"a request has token ids outside 0 … {self._vocabulary - 1}, this model's vocabulary")
        if len(ids) >= self._longest:
            raise UserError(
                f"a request has {len(ids)} tokens, but sequences end at {self._longest}; "
                "set engine_options `max_model_len` higher or take shorter rollouts"
            )
        return list(ids)

    def _salt(self, what: str) -> str:
        return f"{next(self._salts)}:{what}"
