"""The engine contract. Engines see token ids only; text enters and leaves through the codec methods at the end.

An engine keeps each rollout's decode-time state under a handle. `continuations(…, "exact")` resumes that state;
`continuations(…, "refeed")` prefills the same ids cold. What an engine cannot know it reports as None.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from backend.records import Finish, Source, TopK, Trace


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float
    """0 is greedy (ties by lowest token id); otherwise logits are divided by it."""
    top_p: float
    """Nucleus mass in (0, 1]; 1 keeps every token."""
    max_tokens: int
    """Most tokens to generate; a continuation's limit excludes the arm's token."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    handle: str
    prompt_ids: list[int]
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    handle: str
    """Rollout to cut: its state for `exact`, its ids for `refeed`."""
    position: int
    """Index in prompt + generated ids; the prefix is `ids[:position]`, at least the whole prompt."""
    token: int
    """The arm's token, decoded (exact) or prefilled (refeed) after the prefix."""
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Continuation:
    ids: list[int]
    logprobs: list[float]
    """Raw log probability (nats) of each of `ids`."""
    finish_reason: Finish
    expected_cached: int | None
    """Prefix tokens that should come from kept state for the asked source (0 for refeed)."""
    cached: int | None
    """Prefix tokens that did."""
    tail_difference: float | None = None
    """Largest |difference| in nats between the logprobs of recorded tokens that this request decoded again before it
    began to draw and those of the decode that wrote the kept state; None where it decoded none again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine call gave, aligned with its requests."""

    continuations: Sequence[Continuation | None]
    """None for a request that was lost (aborted, ignored): its pivot is incomplete."""
    preemptions: int | None
    """Preemptions counted during the call; None when the engine has no such counter to read."""


@dataclass(frozen=True, slots=True)
class Point:
    handle: str
    position: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The next-token distribution after resuming to a point."""

    top: TopK
    expected_cached: int | None
    cached: int | None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Verdict on a state that was brought back by decoding recorded ids."""

    handle: str
    equal: bool | None
    """Whether every generated position's top-k logprobs equal the recorded ones bit for bit; None without a record."""
    max_difference: float | None
    """Largest |difference| in nats; None without a record."""
    first_divergence: int | None
    """First position whose logprobs differ."""

    @property
    def provenance(self) -> str | None:
        """The design's words for it."""
        if self.equal is None:
            return None
        return "rebuilt, verified" if self.equal else f"rebuilt, off by {self.max_difference:.3g}"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Everything a reader needs to trust a number. Unknown facts are None, never guessed."""

    engine: str
    """`transformers`, `vllm` or `scripted`."""
    engine_version: str | None
    model: str
    model_sha256: str | None
    """Hash over the weight files."""
    architecture: str | None
    parameters: int | None
    dtype: str | None
    device: str | None
    """`cpu` or `cuda`."""
    device_name: str | None
    block_size: int | None
    """Granularity of kept state in tokens: 1 where any position can be resumed by slicing."""
    attention_backend: str | None
    max_num_seqs: int | None
    """Most sequences in one step."""
    max_num_batched_tokens: int | None
    rows_per_step: list[int] | None
    """Row counts a decode step may have, so that a row comes out in the same bits; None where any may do."""
    batch_invariant: bool | None
    graphs: bool | None
    """Whether steps run as captured graphs (False: eager)."""
    threads: int | None
    torch_version: str | None
    context_length: int | None
    tokenizer_sha256: str | None
    eos_ids: list[int]
    special_ids: list[int]
    matmul: str | None = None
    """How matrices are multiplied where the dtype alone does not say it."""

    def document(self) -> str:
        """The facts as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    def digest(self) -> str:
        """Short hash by which measurements refer to these facts."""
        return hashlib.sha256(self.document().encode()).hexdigest()[:16]


class Control(Protocol):
    """How a long call reports and is stopped."""

    def tick(self, tokens: int) -> None:
        """Called after each step with the tokens it produced; raises `Cancelled` when the work should stop."""


class Quiet:
    """A control that neither reports nor stops."""

    def tick(self, tokens: int) -> None:
        return None


class Engine(Protocol):
    """What replay needs of an engine. All calls are batched; results are aligned with their requests."""

    def info(self) -> EngineInfo: ...

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        """Sample transcripts with top-5 raw logprobs a token and keep their decode-time state."""

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        """Complete arms. Raises `UserError` for an unknown handle. `serial` runs one continuation at a time."""

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        """Resume to each point the way `exact` does and give the next-token top-k found there."""

    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        """Bring states back by decoding the recorded ids one step at a time, and compare the logprobs."""

    def holds(self, handles: Sequence[str]) -> list[bool]:
        """Which handles have kept state right now."""

    def release(self, handles: Sequence[str]) -> None:
        """Forget states; unknown handles are ignored."""

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        """Chat template around `messages`, or `plain` for a model without a template."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes each token id stands for; none for an id that is no token's."""

    def close(self) -> None:
        """Free the model's memory."""
