"""The vocabulary of Pivotscope as typed records.

A campaign's product is a tree: problem → rollouts → pivots → measurements (one a pass) → continuations. Every record
is plain data: integers stay integers, what is undefined is ``None``. The same tree is what a shard on disk holds and
what the store ingests.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import Literal

Pass = Literal["exact", "replica", "refeed", "refeed_replica", "shuffled", "serial"]
Arm = Literal["actual", "alternative"]
Source = Literal["exact", "refeed"]
Finish = Literal["stop", "length"]

ARMS: tuple[Arm, Arm] = ("actual", "alternative")
PASSES: tuple[Pass, ...] = ("exact", "replica", "refeed", "refeed_replica", "shuffled", "serial")
STANDARD_PASSES: tuple[Pass, ...] = ("exact", "replica", "refeed")

SOURCE_OF_PASS: dict[Pass, Source] = {
    "exact": "exact",
    "replica": "exact",
    "refeed": "refeed",
    "refeed_replica": "refeed",
    "shuffled": "exact",
    "serial": "exact",
}
"""How each pass brings the prefix state back: resumed (`exact`) or prefilled cold (`refeed`)."""

PROBE = -1
"""The index `i` of an arm's greedy probe among its continuations, whose own indices start at 0."""

PROBE_TOKENS = 32
"""Length of the greedy probe in tokens."""

TOP_K = 5
"""How many of the most probable tokens are recorded at each generated position."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its answer."""

    problem: str
    """Stable id, unique within its problem set, for example `arithmetic-0007`."""
    question: str
    """The question as it is put to the model, without the request for the answer's form."""
    gold: str | None
    """The right answer as text; None for a pasted question."""
    source: str
    """The problem set it comes from: `arithmetic`, a file's name, a data set's id, or `pasted`."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The most probable next tokens at one position, as the engine reported them."""

    ids: list[int]
    """Token ids, in the engine's order (not necessarily sorted)."""
    logprobs: list[float]
    """Raw (pre-temperature) log probabilities in nats, ≤ 0, aligned with `ids`. 0.0 is a value: probability 1."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A rollout as an engine sampled it: token ids, never re-tokenised text."""

    handle: str
    """Name under which the engine keeps the decode-time state."""
    prompt_ids: list[int]
    """Token ids of the prompt."""
    ids: list[int]
    """Generated token ids, the end-of-sequence token included when it was sampled."""
    logprobs: list[float]
    """Raw log probability (nats) of each generated token."""
    top: list[TopK]
    """The most probable tokens at each generated position."""
    finish_reason: Finish
    """`stop` when an end-of-sequence token ended it, `length` at the token limit."""


@dataclass(frozen=True, slots=True)
class ContinuationRecord:
    """One sampled completion of an arm, as stored."""

    arm: Arm
    i: int
    """0 … k−1; −1 is the arm's greedy probe."""
    seed: int
    """31-bit seed of its sampling noise; the same in every pass."""
    ids: list[int]
    """Generated token ids after the arm's token."""
    logprobs: list[float]
    """Raw log probability (nats) of each of `ids`."""
    finish_reason: Finish
    answer: str | None
    """Final answer found in the graded text; None for none, and for probes."""
    correct: bool | None
    """Whether `answer` equals the gold answer; None for probes."""
    expected_cached: int | None
    """Prefix tokens that should have come from kept state; None when the engine cannot say."""
    cached: int | None
    """Prefix tokens that did come from kept state."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pass over one pivot: the integers and the instrument readings."""

    pass_: str
    """One of `PASSES`."""
    run: str
    """`campaign` for the campaign's own plan; otherwise the id of a replay made on demand."""
    k: int
    """Continuations an arm that were asked for."""
    n_actual: int | None
    """Right answers among the actual arm's k continuations; None when only Â is known or it is incomplete."""
    n_alternative: int | None
    """The same of the alternative arm."""
    numerator: int | None
    """n_actual − n_alternative, so that Â = numerator / k exactly; None for an incomplete pivot."""
    truncated_actual: int | None
    """Continuations of the actual arm that hit the token limit without an answer (graded wrong)."""
    truncated_alternative: int | None
    provenance: str | None
    """`live`, `rebuilt, verified`, `rebuilt, off by x`; None when unknown."""
    started: str | None
    """UTC time the pass's engine call began, ISO 8601."""
    seconds: float | None
    """Wall time of the engine call that computed this pivot (shared by the pivots of one call), in seconds."""
    output_sha256: str | None
    """Hash of every token id and logprob of this measurement's continuations and probes."""
    requests: int | None
    """Engine requests made for this measurement, the probes included."""
    cache_misses: int | None
    """Requests whose cached tokens differed from what was expected (exact sources)."""
    warm_requests: int | None
    """Requests that read any cached token (must be 0 on a refeed source)."""
    preemptions: int | None
    """Preemptions the engine counted during the call."""
    logprobs_equal: bool | None
    """Whether the resumed next-token top-k equals the rollout's record bit for bit, and the logprobs of all recorded
    tokens that requests decoded again those of the state's own decode; None when not looked at."""
    logprobs_max_difference: float | None
    """Largest |difference| in nats of these; None when not looked at."""
    seeds_sha256: str | None
    """Hash of the seeds in order, equal across passes when the passes share their noise."""
    engine: str | None
    """Hash of the engine facts the measurement was made with."""
    probe_diverged: bool | None
    """Whether either arm's greedy probe differs from exact's in any token; None for exact itself."""
    probe_delta: float | None
    """Larger of the two arms' |first-token logprob difference| to exact, nats; None for exact itself."""
    continuations: list[ContinuationRecord] = field(default_factory=list)
    """Empty where they were left out of a bundle."""
    alternative: int | None = None
    """Token id that a replay put in the actual one's place by its reader's choice; None for the pivot's own."""


@dataclass(frozen=True, slots=True)
class Pivot:
    """A position with its actual and its alternative token."""

    position: int
    """Index in prompt + generated ids."""
    actual: int | None
    """Token id that the rollout sampled there; None when an imported file does not state it."""
    alternative: int | None
    """Most probable token id that is not the actual one; None likewise."""
    margin: float | None
    """Raw logprob margin top1 − top2 in nats (float64 difference); None when undefined."""
    planned: bool
    """Chosen by the campaign's pivot filter (counts in reports); False for a position somebody clicked."""
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def tokens(self) -> set[int]:
        """Ids of all tokens that stand here in some arm of some run."""
        chosen = (one.alternative for one in self.measurements)
        return {token for token in (self.actual, self.alternative, *chosen) if token is not None}


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled transcript with its pivots, as stored."""

    rollout: int
    """Index within its problem, from 0."""
    seed: int | None
    """None when an imported file does not state it."""
    prompt_ids: list[int]
    """Token ids of the prompt; this and the next four are empty when an imported file does not hold the transcript."""
    ids: list[int]
    logprobs: list[float]
    topk_ids: list[list[int]]
    topk_logprobs: list[list[float]]
    finish_reason: Finish | None
    """None when an imported file does not state it."""
    answer: str | None
    correct: bool | None
    """None when there is nothing to grade against."""
    pivots: list[Pivot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokenText:
    """The bytes a token id stands for, so that pages need no tokenizer."""

    id: int
    bytes: builtins.bytes


ProblemState = Literal["done", "screened_out", "failed"]


@dataclass(frozen=True, slots=True)
class ProblemRecord:
    """Everything a campaign learned about one problem: the content of one shard."""

    problem: str
    question: str | None
    """None, like `source`, when an imported file does not state it."""
    gold: str | None
    source: str | None
    state: ProblemState
    """`screened_out`: its rollouts were all right or all wrong; `failed`: see `error`."""
    error: str | None
    seconds: float | None
    """Wall time spent on the problem."""
    engine: str | None
    """Hash of the engine facts."""
    engine_info: str | None
    """The engine facts as a JSON document."""
    rollouts: list[Rollout] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    """The bytes of every token id that occurs in the record."""
    stated: str | None = None
    """What an imported file says about the problem beyond these fields, as a JSON document."""
