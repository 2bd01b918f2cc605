"""The engine for campaigns: vLLM, resumed from the KV blocks that a rollout itself wrote while decoding.

Each rollout has a salt of its own, so that no sibling's blocks are ever used, and each re-fed request one of its own,
so that nothing is found for it. Rollouts and resumed requests are never decoded in a step that prefills others: such
steps have other kernels. Neither are they in a step of fewer rows than `vllm_options.MIN_ROWS`, for the same reason,
nor on a CPU of more than `vllm_rows` allows; and a piece of a prompt is never prefilled beside fewer tokens than
`vllm_options.MIN_PREFILL`. Whether all that was enough, each resumed request says of itself: see `tail_difference`.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
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
from backend.engines.processor import processor_name
from backend.engines.vllm_options import COMPANION_TOKENS, MIN_ROWS, arguments, has_fixed_rows, read_options
from backend.engines.vllm_start import find_device, start
from backend.engines.vllm_states import NEXT, Kept, States
from backend.errors import OutOfMemory, UserError, WorkFailed
from backend.models import check_architecture, locate
from backend.records import TOP_K, Source, Trace

if TYPE_CHECKING:
    from backend.engines.vllm_steps import Outcome, Request

_FORCED = Sampling(temperature=0.0, top_p=1.0, max_tokens=0)
"""Of requests whose every token is given."""


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
        from backend.engines import vllm_facts, vllm_rows, vllm_steps
        from backend.engines.precision import has_bfloat16_units
        from backend.engines.vllm_precision import accumulate_in_float32

        self._facts, self._request = vllm_facts, vllm_steps.Request
        self._block = vllm_facts.block_size(self._llm)
        self._sequences, self._batched_tokens, self._longest = vllm_facts.limits(self._llm)
        self._vocabulary = int(self._llm.llm_engine.vllm_config.model_config.get_vocab_size())
        self._matmul = "native"
        if device == "cpu":
            computing = vllm_facts.model(self._llm)
            if not has_bfloat16_units() and accumulate_in_float32(computing):
                self._matmul = "float32 accumulation, rounded to bfloat16"
            self._sequences = vllm_rows.most_rows(computing, MIN_ROWS, self._sequences)
            vllm_facts.limit_rows(self._llm, self._sequences)
        self._fixed_rows = has_fixed_rows(checked, dtype, device)
        if self._fixed_rows:
            vllm_rows.fill_up_logits(vllm_facts.model(self._llm), self._sequences)
        tokens = self._sequences if self._fixed_rows else self._batched_tokens
        self._steps = vllm_steps.Steps(self._llm, self._sequences, tokens - MIN_ROWS)
        self._states = States(self._block, vllm_steps.Request)

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
            rows_per_step=[self._sequences] if self._fixed_rows else None,
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
        return max(0, self._facts.capacity(self._llm) - MIN_ROWS * self._states.in_blocks(COMPANION_TOKENS + 1))

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        handles = [request.handle for request in requests]
        if len(set(handles)) != len(handles):
            raise UserError("two rollouts of one call have the same handle; give each its own")
        salts = [self._states.salt(handle) for handle in handles]
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
                    len(request.prompt_ids),
                )
                for request, salt in zip(requests, salts, strict=True)
            ],
            control,
        )
        traces = []
        for request, salt, outcome in zip(requests, salts, outcomes, strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the rollout `{request.handle}`; run it again")
            self._states.keep(request.handle, Kept(salt, list(request.prompt_ids), outcome.ids, outcome.logprobs))
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
        before = self._facts.preemptions(self._llm)
        resumed = source == "exact"
        if resumed:
            for request in requests:
                self._arm(request)  # refuses before anything is computed
        found: list[Continuation | None] = []
        for part in self._states.parts(requests, self.capacity()) if resumed else [slice(len(requests))]:
            if resumed:
                self._touch()
            sent = [self._resumed(request) if resumed else self._refed(request) for request in requests[part]]
            outcomes: list[Outcome | None] = []
            for together in [[one] for one in sent] if serial else [sent]:
                outcomes += self._run(together, control)
            for request, one, outcome in zip(requests[part], sent, outcomes, strict=True):
                expected = self._states.expected(request.handle, len(one.prompt)) if resumed else 0
                found.append(self._continuation(request.handle, one, outcome, expected))
        after = self._facts.preemptions(self._llm)
        return Batch(found, None if before is None or after is None else after - before)

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        lines = [self._states.prefix(point.handle, point.position)[1] for point in points]
        self._touch()
        wanted = [
            self._states.resuming(point.handle, line, 0, NEXT, TOP_K, [])
            for point, line in zip(points, lines, strict=True)
        ]
        found = []
        for point, sent, outcome in zip(points, wanted, self._run(wanted, control), strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the verification of `{point.handle}` at {point.position}; run it again")
            expected = self._states.expected(point.handle, len(sent.prompt))
            found.append(Verification(outcome.top[len(sent.forced)], expected, outcome.cached))
        return found

    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        wanted = []
        for trace in traces:
            if not trace.ids:
                raise UserError(f"rollout `{trace.handle}` has no generated tokens; there is nothing to rebuild")
            self._checked(trace.prompt_ids + trace.ids)
            salt = self._states.salt(trace.handle)
            prompt = trace.prompt_ids
            wanted.append(self._request(prompt, trace.ids, salt, 0, _FORCED, TOP_K, [], len(prompt)))
        verdicts = []
        for trace, sent, outcome in zip(traces, wanted, self._run(wanted, control), strict=True):
            if outcome is None:
                raise WorkFailed(f"vLLM lost the rebuilding of `{trace.handle}`; run it again")
            kept = Kept(sent.salt, list(trace.prompt_ids), list(trace.ids), outcome.logprobs)
            self._states.keep(trace.handle, kept)
            verdicts.append(compare_tops(trace.handle, len(trace.prompt_ids), trace.top, outcome.top))
        return verdicts

    def holds(self, handles: Sequence[str]) -> list[bool]:
        """Which handles have kept state. vLLM does not say what it evicted: the cached tokens of a request do."""
        return [handle in self._states for handle in handles]

    def release(self, handles: Sequence[str]) -> None:
        self._states.drop(handles)

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        return self._codec.prompt_ids(messages, plain)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return self._codec.token_bytes(ids)

    def close(self) -> None:
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        del self._steps
        self._llm = None
        gc.collect()
        if self._device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _run(self, requests: Sequence[Request], control: Control) -> list[Outcome | None]:
        """Outcomes aligned with `requests`."""
        import torch

        try:
            return self._steps.run(requests, control)
        except torch.OutOfMemoryError:
            raise OutOfMemory(f"the device has no memory for {len(requests)} requests at once") from None

    def _touch(self) -> None:
        self._states.touch(lambda requests: self._run(requests, Quiet()))

    def _continuation(self, handle: str, sent: Request, outcome: Outcome | None, expected: int) -> Continuation | None:
        """What was drawn after the forced tokens; None where the request was lost."""
        if outcome is None:
            return None
        forced = len(sent.forced)
        return Continuation(
            outcome.ids[forced:],
            outcome.logprobs[forced:],
            outcome.finish_reason,
            expected,
            outcome.cached,
            self._states.tail_difference(handle, sent, outcome.logprobs[:forced]),
        )

    def _resumed(self, request: ContinuationRequest) -> Request:
        """The request that finds the rollout's full blocks before the position and decodes the rest."""
        return self._states.resuming(
            request.handle, self._arm(request), request.seed, request.sampling, 0, self._codec.eos_ids
        )

    def _refed(self, request: ContinuationRequest) -> Request:
        """The request that prefills prefix and arm's token under a salt that nothing was written under."""
        line = self._arm(request)
        salt = self._states.salt("refeed")
        return self._request(line, [], salt, request.seed, request.sampling, 0, self._codec.eos_ids)

    def _arm(self, request: ContinuationRequest) -> list[int]:
        """The prefix and the arm's token. Raises `UserError` where nothing can follow."""
        kept, prefix = self._states.prefix(request.handle, request.position)
        line = self._checked([*prefix, request.token])
        ended = next((token for token in line[len(kept.prompt_ids) :] if token in self._codec.eos_ids), None)
        if ended is not None:
            raise UserError(
                f"token {ended} ends the sequence at or before position {request.position} of `{request.handle}`; "
                "nothing follows it"
            )
        return line

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
