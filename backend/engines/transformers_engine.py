"""The embedded engine: a transformers model, its KV kept as tensors, exact resume as a slice.

The shape of a step is part of the arithmetic, so rollouts, verification, continuations and rebuilds share one decode
loop (`decoding`), one attention path (`ragged`) and row counts that are calibrated at start to give the same bits.
Rollouts decode the prompt's last token too, so that every recorded logprob comes from a decode step and can be found
again bit for bit.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers import __version__ as transformers_version
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from backend.engines.base import (
    Batch,
    Continuation,
    ContinuationRequest,
    Control,
    EngineInfo,
    Point,
    Rebuilt,
    RolloutRequest,
    Sampling,
    Verification,
)
from backend.engines.calibration import equal_classes
from backend.engines.codec import Codec
from backend.engines.comparison import compare_tops
from backend.engines.decoding import Bundle, Decoder, Row
from backend.engines.precision import accumulate_in_float32, has_bfloat16_units, reproducible
from backend.engines.processor import processor_name
from backend.engines.ragged import ATTENTION, Layers, PrefillCache, StepCache, attention, cut, size_of
from backend.engines.threads import default_threads
from backend.errors import OutOfMemory, UserError
from backend.records import Source, Trace

ROW_CLASSES = (8, 10, 12, 16, 20, 24, 30)
CUDA_ROW_CLASSES = (8, 16, 32, 64, 128, 256)


class TransformersOptions(BaseModel):
    """`engine_options` of this engine."""

    model_config = ConfigDict(extra="forbid")

    device: str | None = None
    """`cpu` or `cuda`; by default cuda where there is one."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads; by default `default_threads()`."""
    max_num_seqs: int | None = Field(default=None, ge=8)
    """Most rows in a step."""
    state_gib: float = Field(default=1.0, gt=0)
    """Memory for kept states in GiB; the least recently used go first."""


@dataclass(slots=True)
class _State:
    ids: list[int]
    """Prompt and generated ids."""
    layers: Layers
    """KV of all but the last id, one row."""


class TransformersEngine:
    """`backend.engines.base.Engine` on a transformers checkpoint folder."""

    def __init__(self, model: Path, dtype: str, *, name: str, sha256: str | None, options: dict[str, Any]) -> None:
        try:
            self._options = TransformersOptions.model_validate(options)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise UserError(f"engine_options.{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}") from None
        reproducible()
        self._name, self._sha256, self._dtype = name, sha256, dtype
        self._device = torch.device(self._options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.set_num_threads(self._options.threads or default_threads())
        self._codec = Codec(model)
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
        self._model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(
            model, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
        )
        self._model.config._attn_implementation = ATTENTION
        self._matmul = "native"
        if dtype == "bfloat16" and self._device.type == "cpu" and not has_bfloat16_units():
            accumulate_in_float32(self._model)
            self._matmul = "float32 accumulation, rounded to bfloat16"
        self._model = self._model.to(self._device).eval()
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._provenance: dict[str, str] = {}
        ceiling = self._options.max_num_seqs or 1 << 30
        wanted = [n for n in (CUDA_ROW_CLASSES if self._device.type == "cuda" else ROW_CLASSES) if n <= ceiling]
        self._classes = equal_classes(self._forward, self._random_prefix(37), wanted, self._device)
        self._decoder = Decoder(self._forward, self._classes, frozenset(self._codec.eos_ids), self._device)

    def info(self) -> EngineInfo:
        config = self._model.config
        cuda = self._device.type == "cuda"
        return EngineInfo(
            engine="transformers",
            engine_version=transformers_version,
            model=self._name,
            model_sha256=self._sha256,
            architecture=(config.architectures or [None])[0],
            parameters=sum(parameter.numel() for parameter in self._model.parameters()) if cuda else None,
            dtype=self._dtype,
            device=self._device.type,
            device_name=torch.cuda.get_device_name(self._device) if cuda else _processor(),
            block_size=1,
            attention_backend="sdpa, a group of equal rows at a time",
            max_num_seqs=self._classes[-1],
            max_num_batched_tokens=None,
            rows_per_step=self._classes,
            batch_invariant=False,
            graphs=False,
            threads=torch.get_num_threads(),
            torch_version=torch.__version__,
            context_length=getattr(config, "max_position_embeddings", None),
            tokenizer_sha256=self._codec.sha256,
            eos_ids=self._codec.eos_ids,
            special_ids=self._codec.special_ids,
            matmul=self._matmul,
        )

    @torch.inference_mode()
    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        rows = [Row(deque(r.prompt_ids[-1:]), r.sampling, r.seed, want_top=True) for r in requests]
        bundles = []
        for _, members in groupby(range(len(requests)), key=lambda i: requests[i].prompt_ids):
            numbers = list(members)
            for i in numbers:
                rows[i].keep_state = partial(self._keep, requests[i].handle, requests[i].prompt_ids, rows[i].ids)
            bundles.append(Bundle([rows[i] for i in numbers], self._prompt(requests[numbers[0]].prompt_ids, control)))
        self._run(bundles, control)
        return [
            Trace(request.handle, request.prompt_ids, row.ids, row.logprobs, row.top, row.finish or "length")
            for request, row in zip(requests, rows, strict=True)
        ]

    @torch.inference_mode()
    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        rows = [Row(deque([r.token] if source == "exact" else []), r.sampling, r.seed) for r in requests]
        cached = [0] * len(requests)
        bundles = []

        def start(i: int) -> tuple[str, int, int]:
            request = requests[i]
            return request.handle, request.position, request.token if source == "refeed" else -1

        for _, members in groupby(range(len(requests)), key=start):
            numbers = list(members)
            together = [rows[i] for i in numbers]
            request = requests[numbers[0]]
            state = self._state(request.handle, request.position)
            if source == "exact":
                prefix = cut(state.layers, request.position)
                for i in numbers:
                    cached[i] = prefix[0][0].shape[2]
                bundles.append(Bundle(together, partial(list, prefix)))
            else:
                prefill = _Prefill(self._prefill, [*state.ids[: request.position], request.token], control)
                bundles.append(Bundle(together, prefill.layers, prefill.logits))
        self._run(bundles, control, max_rows=1 if serial else None)
        expected = [request.position if source == "exact" else 0 for request in requests]
        return Batch(
            [
                Continuation(row.ids, row.logprobs, row.finish or "length", *counts)
                for row, *counts in zip(rows, expected, cached, strict=True)
            ],
            preemptions=0,  # rows are admitted only when they fit and run to their end
        )

    @torch.inference_mode()
    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        greedy = Sampling(0.0, 1.0, 1)
        rows, bundles, cached = [], [], []
        for point in points:
            state = self._state(point.handle, point.position)
            prefix = cut(state.layers, point.position - 1)
            rows.append(Row(deque([state.ids[point.position - 1]]), greedy, 0, want_top=True))
            bundles.append(Bundle(rows[-1:], partial(list, prefix)))
            cached.append(prefix[0][0].shape[2])
        self._run(bundles, control)
        return [
            Verification(row.top[0], point.position - 1, found)
            for row, point, found in zip(rows, points, cached, strict=True)
        ]

    @torch.inference_mode()
    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        rows, bundles = [], []
        for trace in traces:
            row = Row(deque([trace.prompt_ids[-1], *trace.ids[:-1]]), Sampling(0.0, 1.0, 1), 0, want_top=True)
            row.keep_state = partial(self._keep, trace.handle, trace.prompt_ids, trace.ids)
            rows.append(row)
            bundles.append(Bundle([row], self._prompt(trace.prompt_ids, control)))
        self._run(bundles, control)
        return [
            compare_tops(trace.handle, len(trace.prompt_ids), trace.top, row.top)
            for trace, row in zip(traces, rows, strict=True)
        ]

    def holds(self, handles: Sequence[str]) -> list[bool]:
        return [handle in self._states for handle in handles]

    def release(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self._states.pop(handle, None)

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        return self._codec.prompt_ids(messages, plain)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return self._codec.token_bytes(ids)

    def close(self) -> None:
        self._states.clear()
        del self._model, self._decoder
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, bundles: list[Bundle], control: Control, max_rows: int | None = None) -> None:
        with _memory():
            self._decoder.run(bundles, control, max_rows=max_rows)

    def _forward(self, ids: Tensor, positions: Tensor, cache: StepCache) -> Tensor:
        out = self._model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
        logits: Tensor = out.logits[:, -1]
        return logits

    def _prefill(self, ids: list[int]) -> tuple[Layers, Tensor]:
        """Cold forward of one sequence: its KV and the logits [vocabulary] after its last token."""
        column = torch.tensor([ids], device=self._device)
        positions = torch.arange(len(ids), device=self._device)[None]
        cache = PrefillCache()
        out = self._model(
            input_ids=column, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        return cache.layers, out.logits[0, -1]

    def _prompt(self, ids: list[int], control: Control) -> Callable[[], Layers]:
        """KV of a prompt without its last token, which the first decode step takes."""
        if len(ids) < 2:
            raise UserError("a prompt of fewer than two tokens cannot be rolled out; give a longer one")
        return _Prefill(self._prefill, ids[:-1], control).layers

    def _state(self, handle: str, position: int) -> _State:
        state = self._states.get(handle)
        if state is None:
            raise UserError(f"the engine keeps no state of rollout {handle}; rebuild it first")
        self._states.move_to_end(handle)
        if not 0 < position < len(state.ids):
            raise UserError(f"position {position} lies outside rollout {handle}, which has {len(state.ids)} tokens")
        return state

    def _keep(self, handle: str, prompt_ids: list[int], ids: list[int], layers: Layers) -> None:
        self._states[handle] = _State([*prompt_ids, *ids], layers)
        self._states.move_to_end(handle)
        limit = self._options.state_gib * 2**30
        while len(self._states) > 1 and sum(size_of(state.layers) for state in self._states.values()) > limit:
            self._states.popitem(last=False)

    @torch.inference_mode()
    def _random_prefix(self, length: int) -> Layers:
        """KV of some text, for calibration: ids spread over the vocabulary by a fixed stride."""
        vocabulary = self._model.config.vocab_size
        return self._prefill([(7919 * i + 11) % vocabulary for i in range(length)])[0]


class _Prefill:
    """A prefill computed when first asked for, and let go once both its parts were taken."""

    def __init__(self, run: Callable[[list[int]], tuple[Layers, Tensor]], ids: list[int], control: Control) -> None:
        self._run, self._ids, self._control = run, ids, control
        self._logits: Tensor | None = None

    def layers(self) -> Layers:
        self._control.tick(0)
        layers, self._logits = self._run(self._ids)
        return layers

    def logits(self) -> Tensor:
        assert self._logits is not None
        return self._logits


def _processor() -> str | None:
    name = processor_name()
    return name and f"{name} ({torch.backends.cpu.get_cpu_capability()})"


@contextmanager
def _memory() -> Any:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the GPU ran out of memory ({str(error).splitlines()[0]}); run fewer sequences") from None
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise OutOfMemory("the machine ran out of memory; run fewer sequences at once") from None
        raise
