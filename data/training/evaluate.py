"""How often a policy is right on the bundled problems, which no training problem shares a question with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from backend.inference import counts_statistic, percentile_intervals
from data.problems.generate import BUNDLED_FILE, Row
from data.training.batches import Batch
from data.training.policy import Policy, completion_logits, low_margins


@dataclass(frozen=True)
class EvaluationSettings:
    """How the bundled problems are sampled: as campaigns sample by default."""

    problems: int = 720
    samples: int = 4
    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 256
    rows: int = 2880
    """Answers sampled at a time; bounds the memory."""
    chunk: int = 64
    """Sequences in one forward pass when margins are read; bounds the memory."""


@dataclass(frozen=True)
class Evaluation:
    """What was counted, and the shares that follow."""

    problems: int
    samples: int
    """Answers a problem."""
    correct: int
    """Right answers of problems × samples; one that was cut off by its length is wrong."""
    accuracy: float
    ci95: tuple[float, float] | None
    """Of the accuracy: percentile bootstrap over problems; None where all problems agree."""
    accuracy_by_tier: dict[int, float]
    """By the number of steps of the problem."""
    unfinished: int
    """Answers cut off by their length."""
    tokens: float
    """Mean number of tokens of an answer."""
    low_margin_tokens: float
    """Mean number of tokens of an answer whose raw logprob margin is under 1 nat, over one answer a problem."""
    examples: tuple[str, ...]
    """The first answer to the first problem of each tier."""

    def document(self) -> dict[str, Any]:
        """As plain values for JSON, shares rounded to four places."""
        return json.loads(json.dumps(asdict(self)), parse_float=lambda text: round(float(text), 4))


def evaluate(policy: Policy, settings: EvaluationSettings) -> Evaluation:
    """Sample and grade the sampler's answers to the bundled problems."""
    rows = _bundled(settings.problems)
    every = [row for _ in range(settings.samples) for row in rows]
    right, finished, lengths, low, texts = [], [], [], [], []
    for start in range(0, len(every), settings.rows):
        part = every[start : start + settings.rows]
        batch = policy.sample(
            part, temperature=settings.temperature, top_p=settings.top_p, max_tokens=settings.max_tokens
        )
        right.append(policy.right(batch, part))
        finished.append(batch.finished(policy.end).cpu())
        lengths.append(batch.scored.sum(1).cpu())
        firsts = max(0, min(len(part), len(rows) - start))  # the first answer to each problem comes first
        low += _low_margins(policy, batch, firsts, settings.chunk)
        texts += policy.texts(batch)[:firsts]
    verdicts = torch.cat(right).view(settings.samples, len(rows)).numpy()
    by_problem = verdicts.sum(0).astype(np.int64)
    tiers = np.array([row["tier"] for row in rows])
    [ci95] = percentile_intervals([counts_statistic(by_problem, np.full(len(rows), settings.samples))])
    first_of_tier = [int(np.flatnonzero(tiers == tier)[0]) for tier in sorted(set(tiers.tolist()))]
    return Evaluation(
        problems=len(rows),
        samples=settings.samples,
        correct=int(by_problem.sum()),
        accuracy=float(verdicts.mean()),
        ci95=ci95,
        accuracy_by_tier={tier: float(verdicts[:, tiers == tier].mean()) for tier in sorted(set(tiers.tolist()))},
        unfinished=int((~torch.cat(finished)).sum()),
        tokens=float(torch.cat(lengths).mean()),
        low_margin_tokens=float(torch.cat(low).mean()),
        examples=tuple(texts[index] for index in first_of_tier),
    )


def _bundled(count: int) -> list[Row]:
    """The first `count` bundled problems, tiers and all."""
    lines = BUNDLED_FILE.read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line) for line in lines]


@torch.no_grad()
def _low_margins(policy: Policy, batch: Batch, count: int, chunk: int) -> list[torch.Tensor]:
    """Low-margin tokens of each of the first `count` answers, in chunks float32[n]."""
    found = []
    for index in torch.arange(count).split(chunk) if count else ():
        part = batch.rows(index.to(policy.device))
        with policy.autocast():
            found.append(low_margins(completion_logits(policy.sampler, part), part).cpu())
    return found
