"""An engine without weights: it plays the written-down model of `scripted_model`, and breaks on request.

The numerics contract is the real engines': the same state gives the same bits, a request's seed alone draws its
tokens, and exact and refeed agree unless noise was asked for; `scripted_faults` lists what can be asked for.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from backend.engines.comparison import difference
from backend.engines.scripted_faults import Faults, amount
from backend.engines.scripted_model import END, SPECIAL_IDS, START, TURN, Reader, token_bytes, uniform
from backend.errors import OutOfMemory, UserError
from backend.records import Finish, Source, TopK, Trace


@dataclass(slots=True)
class _State:
    """What is kept under a handle."""

    prompt_ids: list[int]
    ids: list[int]
    noise: float = 0.0
    """How far a rebuilt state is off, nats."""
    visits: Counter[tuple[Any, ...]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Row:
    """One sequence being decoded."""

    reader: Reader
    sampling: Sampling
    seed: int
    noise: float
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[TopK] = field(default_factory=list)
    finish_reason: Finish | None = None

    def step(self) -> None:
        top = perturbed(self.reader, self.noise)
        choice = draw(top, self.sampling, uniform(self.seed, len(self.ids)))
        token = top.ids[choice]
        self.ids.append(token)
        self.logprobs.append(top.logprobs[choice])
        self.top.append(top)
        self.reader.feed(token)
        if token == END:
            self.finish_reason = "stop"
        elif len(self.ids) >= self.sampling.max_tokens:
            self.finish_reason = "length"


def perturbed(reader: Reader, noise: float) -> TopK:
    """The distribution at a reader's place, each logprob moved by at most `noise` nats and renormalised.

    A certain token stays certain.
    """
    top = reader.next()
    if not noise or 0.0 in top.logprobs:
        return top
    moved = [
        value + noise * (2 * uniform(reader.prefix_hash, token) - 1)
        for token, value in zip(top.ids, top.logprobs, strict=True)
    ]
    total = math.log(sum(math.exp(value) for value in moved))
    return TopK(list(top.ids), [value - total for value in moved])


def draw(top: TopK, sampling: Sampling, number: float) -> int:
    """Index into `top` of the token that a uniform number in [0, 1) picks."""
    order = sorted(range(len(top.ids)), key=lambda index: (-top.logprobs[index], top.ids[index]))
    if sampling.temperature == 0:
        return order[0]
    best = top.logprobs[order[0]]
    weights = [math.exp((top.logprobs[index] - best) / sampling.temperature) for index in order]
    kept, mass, total = 0, 0.0, sum(weights)
    while kept < len(order) and (kept == 0 or mass < sampling.top_p * total):
        mass += weights[kept]
        kept += 1
    target, reached = number * mass, 0.0
    for index, weight in zip(order[:kept], weights, strict=False):
        reached += weight
        if target < reached:
            return index
    return order[kept - 1]


class ScriptedEngine:
    """The engine contract over the written-down model. `model` seeds its text; no file is read."""

    def __init__(
        self, model: str, dtype: str, options: Mapping[str, Any] | None = None, *, batch_invariant: bool = False
    ) -> None:
        self._model, self._dtype, self._batch_invariant = model, dtype, batch_invariant
        self._faults = Faults.read(options or {})
        self._states: dict[str, _State] = {}
        self._calls: Counter[str] = Counter()
        """Calls so far, by `rollouts` or the continuations' source."""
        self._verified = self._resumed = 0

    def info(self) -> EngineInfo:
        changed = 0 < self._faults.facts_change <= self._calls["exact"] + self._calls["refeed"]
        return EngineInfo(
            engine="scripted",
            engine_version="1",
            model=self._model,
            model_sha256=hashlib.sha256(f"scripted|{self._model}".encode()).hexdigest(),
            architecture="scripted",
            parameters=0,
            dtype=self._dtype,
            device="cpu",
            device_name=None,
            block_size=1,
            attention_backend=None,
            max_num_seqs=None,
            max_num_batched_tokens=None,
            rows_per_step=None,
            batch_invariant=self._batch_invariant,
            graphs=False,
            threads=2 if changed else 1,
            torch_version=None,
            context_length=8192,
            tokenizer_sha256=None,
            eos_ids=[END],
            special_ids=SPECIAL_IDS,
        )

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        self._begin("rollouts", len(requests), control)
        rows = []
        for request in requests:
            text = b"".join(map(token_bytes, request.prompt_ids)).decode(errors="replace")
            if self._faults.fail_on and self._faults.fail_on in text:
                raise RuntimeError(f"the prompt contains {self._faults.fail_on!r}")
            rows.append(_Row(Reader.after_prompt(self._model, request.prompt_ids), request.sampling, request.seed, 0.0))
        self._play(rows, control)
        traces = []
        for request, row in zip(requests, rows, strict=True):
            self._states[request.handle] = _State(list(request.prompt_ids), row.ids)
            traces.append(
                Trace(
                    request.handle,
                    list(request.prompt_ids),
                    row.ids,
                    row.logprobs,
                    row.top,
                    row.finish_reason or "length",
                )
            )
        return traces

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        self._begin(source, len(requests), control)
        faults, readers = self._faults, _Readers(self._model)
        rows, visits = [], []
        for request in requests:
            state = self._state(request.handle)
            key = (request.position, request.token, request.seed, request.sampling, source)
            state.visits[key] += 1
            visits.append(state.visits[key])
            reader = readers.at(request.handle, state, request.position)
            reader.feed(request.token)
            noise = amount(faults.noise, source, visits[-1]) + (state.noise if source == "exact" else 0.0)
            rows.append(_Row(reader, request.sampling, request.seed, noise))
        for batch in [[row] for row in rows] if serial else [rows]:
            self._play(batch, control)
        continuations: list[Continuation | None] = []
        for request, row, visit in zip(requests, rows, visits, strict=True):
            expected = request.position if source == "exact" else 0
            cached = expected - amount(faults.fewer_cached, source, visit) + amount(faults.warm, source, visit)
            self._resumed += source == "exact"
            tail = 2.0**-52 if source == "exact" and self._resumed == faults.altered_tail else None
            continuations.append(
                Continuation(row.ids, row.logprobs, row.finish_reason or "length", expected, max(int(cached), 0), tail)
            )
        visit = max(visits, default=1)
        for index in range(min(int(amount(faults.dropped, source, visit)), len(continuations))):
            continuations[index] = None
        return Batch(continuations, preemptions=int(amount(faults.preemptions, source, visit)))

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        self._need_memory(len(points))
        readers, verifications = _Readers(self._model), []
        for point in points:
            state = self._state(point.handle)
            top = perturbed(readers.at(point.handle, state, point.position), state.noise)
            self._verified += 1
            if self._verified == self._faults.altered_logprob:
                values = list(top.logprobs)
                best = values.index(max(values))
                values[best] = math.nextafter(values[best], -math.inf)
                top = TopK(top.ids, values)
            verifications.append(Verification(top, point.position, point.position))
        control.tick(len(points))
        return verifications

    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        noise = amount(self._faults.noise, "rebuild", 1)
        verdicts = []
        for trace in traces:
            reader = Reader.after_prompt(self._model, trace.prompt_ids)
            largest, first = 0.0, None
            for index, token in enumerate(trace.ids):
                if index < len(trace.top):
                    gap = difference(trace.top[index], perturbed(reader, noise))
                    if gap and first is None:
                        first = len(trace.prompt_ids) + index
                    largest = max(largest, gap or 0.0)
                reader.feed(token)
            self._states[trace.handle] = _State(list(trace.prompt_ids), list(trace.ids), noise)
            known = bool(trace.top)
            verdicts.append(Rebuilt(trace.handle, first is None if known else None, largest if known else None, first))
            control.tick(len(trace.ids))
        return verdicts

    def holds(self, handles: Sequence[str]) -> list[bool]:
        return [handle in self._states for handle in handles]

    def release(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self._states.pop(handle, None)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], plain: str) -> list[int]:
        ids = [START]
        for message in messages:
            ids += [*message["content"].encode(), TURN]
        return ids

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return [token_bytes(token) for token in ids]

    def close(self) -> None:
        self._states.clear()

    def _play(self, rows: list[_Row], control: Control) -> None:
        live = rows
        while live:
            for row in live:
                row.step()
            if self._faults.delay:
                time.sleep(self._faults.delay)
            control.tick(len(live))
            live = [row for row in live if row.finish_reason is None]

    def _state(self, handle: str) -> _State:
        if handle not in self._states:
            raise UserError(f"no state is kept under the handle `{handle}`; sample or rebuild the rollout first")
        return self._states[handle]

    def _begin(self, kind: str, requests: int, control: Control) -> None:
        """Count a call, and let it wait for as long as it is held."""
        self._need_memory(requests)
        self._calls[kind] += 1
        while self._faults.holds(kind, self._calls[kind]):
            control.tick(0)
            time.sleep(0.01)

    def _need_memory(self, requests: int) -> None:
        if 0 < self._faults.memory_requests < requests:
            raise OutOfMemory(
                f"the scripted engine has memory for {self._faults.memory_requests} requests, not {requests}"
            )


class _Readers:
    """Readers placed inside rollouts, each rollout read once a call."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._along: dict[str, list[Reader]] = defaultdict(list)

    def at(self, handle: str, state: _State, position: int) -> Reader:
        """A reader of its own at `position`, which lies in the generated part or at its end."""
        index = position - len(state.prompt_ids)
        if not 0 <= index <= len(state.ids):
            end = len(state.prompt_ids) + len(state.ids)
            raise UserError(f"position {position} of `{handle}` is not between {len(state.prompt_ids)} and {end}")
        along = self._along[handle]
        if not along:
            along.append(Reader.after_prompt(self._model, state.prompt_ids))
        while len(along) <= index:
            reader = along[-1].copy()
            reader.feed(state.ids[len(along) - 1])
            along.append(reader)
        return along[index].copy()
