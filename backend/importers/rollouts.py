"""The study's rollout: one JSON file a transcript, with the top-k logprobs of each generated token.

The recorded order of each top-k is kept: it is what `backend.audit` looks at.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from backend.importers.reading import parse_object, read_bytes, validate
from backend.ingest import Campaign
from backend.records import ProblemRecord, Rollout, TokenText

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _logprob(value: float) -> float:
    if math.isnan(value) or value > 0:
        raise ValueError(f"is {value}; a logprob is a number of at most 0")
    return value


Logprob = Annotated[float, AfterValidator(_logprob)]


class RecordedCandidate(BaseModel):
    """One of the most probable tokens at a position."""

    token_id: TokenId
    text: str
    logprob: float | None
    """Nats. What takes no part in a margin (null, NaN, −Infinity) may stand here."""


class RecordedToken(BaseModel):
    """One generated token."""

    token_id: TokenId
    text: str
    logprob: Logprob
    topk: list[RecordedCandidate]


class RecordedSampling(BaseModel):
    """How the rollout was drawn, as far as it is said."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class RecordedRollout(BaseModel):
    """The whole file."""

    model_id: Annotated[str, Field(min_length=1)]
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)]
    sampling: RecordedSampling = RecordedSampling()
    tokens: Annotated[list[RecordedToken], Field(min_length=1)]


def load_rollout(path: Path) -> RecordedRollout:
    """A rollout file. Raises `UserError` naming the file and the field or index."""
    return validate(RecordedRollout, parse_object(read_bytes(path), str(path)), str(path))


def read_rollout(data: dict[str, Any], where: str, campaign: str, name: str) -> tuple[Campaign, list[ProblemRecord]]:
    """A rollout file's campaign row and its one record. Raises `UserError` naming `where` and the field."""
    recorded = validate(RecordedRollout, data, where)
    settings = {
        "model": recorded.model_id,
        "temperature": recorded.sampling.temperature,
        "top_p": recorded.sampling.top_p,
        "stated": {key: value for key, value in data.items() if key not in ("tokens", "prompt_token_ids", "text")},
    }
    row = Campaign(
        campaign=campaign,
        name=name,
        origin="import",
        state="imported",
        model=recorded.model_id,
        settings={key: value for key, value in settings.items() if value is not None},
    )
    return row, [_record(recorded)]


def _record(recorded: RecordedRollout) -> ProblemRecord:
    prompt = hashlib.sha256(json.dumps(recorded.prompt_token_ids).encode()).hexdigest()[:8]
    return ProblemRecord(
        problem=f"prompt-{prompt}",
        question=None,
        gold=None,
        source=None,
        state="done",
        error=None,
        seconds=None,
        engine=None,
        engine_info=None,
        rollouts=[
            Rollout(
                rollout=0,
                seed=None,
                prompt_ids=recorded.prompt_token_ids,
                ids=[token.token_id for token in recorded.tokens],
                logprobs=[token.logprob for token in recorded.tokens],
                topk_ids=[[candidate.token_id for candidate in token.topk] for token in recorded.tokens],
                topk_logprobs=[[_number(candidate.logprob) for candidate in token.topk] for token in recorded.tokens],
                finish_reason=None,
                answer=None,
                correct=None,
            )
        ],
        tokens=_texts(recorded),
    )


def _number(logprob: float | None) -> float:
    return math.nan if logprob is None else logprob


def _texts(recorded: RecordedRollout) -> list[TokenText]:
    texts = {token.token_id: token.text for token in recorded.tokens}
    for token in recorded.tokens:
        for candidate in token.topk:
            texts.setdefault(candidate.token_id, candidate.text)
    return [TokenText(token, text.encode()) for token, text in sorted(texts.items())]
