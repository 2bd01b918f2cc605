"""Group-relative policy optimisation: sample a group of answers a problem, and raise what is better than its group.

The reward is 1 for an answer that `backend.grading` finds right and that ended by itself, else 0. The loss is a mean
over tokens, with a clipped ratio and a small KL term to the policy that training started from; groups that are all
right or all wrong teach nothing and are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from data.problems.generate import Row
from data.training.batches import Batch, endless, training_rows
from data.training.curves import Curve
from data.training.policy import Policy, completion_logits, low_margins, token_logprobs
from data.training.schedule import Schedule

TRAINING_SEED = 3
COLUMNS = ("step", "seconds", "learning_rate", "reward", "mixed_groups", "tokens", "low_margin_tokens", "kl")


@dataclass(frozen=True)
class GrpoSettings:
    """What reinforcement does. Time is in seconds."""

    seconds: float = 400.0
    steps: int = 400
    problems_per_step: int = 32
    group: int = 16
    """Answers a problem."""
    updates: int = 2
    """Optimiser steps over the answers of one sampling, each over its own part of them."""
    learning_rate: float = 2e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.02
    """Weight of the KL term, which keeps the wording as varied as it was."""
    problems: int = 4096
    tier_shares: tuple[float, float, float, float] = (0.3, 1.0, 1.0, 1.0)
    """How many of the problems of 1, 2, 3 and 4 steps are used: of the easiest nearly every group is all right."""
    temperature: float = 1.0
    max_tokens: int = 176
    chunk: int = 96
    """Sequences in one forward pass; bounds the memory without changing a result."""


@dataclass(frozen=True)
class Experience:
    """The answers of one sampling that teach something, with what the update needs of each."""

    batch: Batch
    advantages: Tensor
    """float32[N]"""
    old: Tensor
    """float32[N, C]: logprobs by the policy as it was when it sampled."""
    reference: Tensor
    """float32[N, C]: logprobs by the policy that training started from."""


Reward = Callable[[Policy, Batch, Sequence[Row]], Tensor]
"""Scores the answers of a batch to its problems, one each: bool[N] or float32[N] on the CPU."""


def train_grpo(
    policy: Policy,
    settings: GrpoSettings,
    curve: Curve,
    *,
    keep: Callable[[], object],
    reward: Reward = Policy.right,
) -> dict[str, object]:
    """Train the policy's adapter on; call `keep()` every ten steps. Returns what was done, for the card."""
    rng = random.Random(TRAINING_SEED)
    pool = training_rows(settings.problems, TRAINING_SEED)
    pool = [row for row in pool if rng.random() < settings.tier_shares[row["tier"] - 1]]
    batches = endless(pool, settings.problems_per_step, rng)
    policy.synchronise()
    reference = policy.frozen_sampler()
    optimiser = torch.optim.AdamW(policy.parameters, weight_decay=0.0)
    schedule = Schedule(settings.steps, settings.seconds, optimiser, settings.learning_rate)
    step = 0
    policy.trained.train()
    for step in schedule:
        rows = [row for row in next(batches) for _ in range(settings.group)]
        policy.synchronise()
        batch = policy.sample(rows, temperature=settings.temperature, top_p=1.0, max_tokens=settings.max_tokens)
        rewards = reward(policy, batch, rows).float().view(-1, settings.group)
        advantages, mixed = group_advantages(rewards)
        kept = mixed.repeat_interleave(settings.group).nonzero()[:, 0]
        low, kl = None, None
        if len(kept):
            experience, low = _experience(policy, reference, batch, advantages.view(-1), kept, settings)
            kl = _update(policy, optimiser, experience, settings)
        tokens = float(batch.scored.sum(1).mean())
        rate = optimiser.param_groups[0]["lr"]
        curve.add(step, schedule.elapsed, rate, float(rewards.mean()), int(mixed.sum()), tokens, low, kl)
        if step % 10 == 0:
            keep()
    answers = settings.problems_per_step * settings.group * step
    return {"steps": step, "seconds": round(schedule.elapsed), "problems": len(pool), "answers": answers}


def group_advantages(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages float32[Q, G] of rewards float32[Q, G], each in its group's standard deviations, and bool[Q].

    The flag says whether a group has any spread; the advantages of one without are 0.
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    spread = rewards.std(1, correction=0, keepdim=True)
    mixed = rewards.amax(1) > rewards.amin(1)
    return torch.where(mixed.unsqueeze(1), centred / spread, torch.zeros_like(centred)), mixed


def token_losses(new: Tensor, old: Tensor, reference: Tensor, advantages: Tensor, settings: GrpoSettings) -> Tensor:
    """Loss of every token, float32[N, C]: the clipped surrogate and the KL term, its estimate never under 0.

    Args:
        new, old, reference: logprobs float32[N, C] of the policy now, when it sampled, and when training started.
        advantages: float32[N], one a sequence.
    """
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    weight = advantages.unsqueeze(1)
    return -torch.minimum(ratio * weight, clipped * weight) + settings.kl * kl_estimate(new, reference)


def kl_estimate(new: Tensor, reference: Tensor) -> Tensor:
    """Unbiased estimate a token of KL(new ‖ reference) from tokens drawn by `new`."""
    log_ratio = reference - new
    return log_ratio.exp() - log_ratio - 1


@torch.no_grad()
def _experience(
    policy: Policy, reference: Any, batch: Batch, advantages: Tensor, kept: Tensor, settings: GrpoSettings
) -> tuple[Experience, float]:
    """What the update needs of the kept rows, and their mean number of low-margin tokens."""
    batch = batch.rows(kept.to(policy.device))
    old, start, low = [], [], []
    for index in torch.arange(len(kept), device=policy.device).split(settings.chunk):
        part = batch.rows(index)
        with policy.autocast():
            logits = completion_logits(policy.trained, part)
            old.append(token_logprobs(logits, part))
            low.append(low_margins(logits, part))
            start.append(token_logprobs(completion_logits(reference, part), part))
    experience = Experience(batch, advantages[kept].to(policy.device), torch.cat(old), torch.cat(start))
    return experience, float(torch.cat(low).mean())


def _update(policy: Policy, optimiser: torch.optim.Optimizer, data: Experience, settings: GrpoSettings) -> float:
    """Take the optimiser's steps over the data in a random order; return the mean KL estimate a token."""
    kl = 0.0
    for part in torch.randperm(len(data.old)).to(policy.device).chunk(settings.updates):
        tokens = data.batch.rows(part).scored.sum()
        optimiser.zero_grad()
        for index in part.split(settings.chunk):
            batch = data.batch.rows(index)
            with policy.autocast():
                new = token_logprobs(completion_logits(policy.trained, batch), batch)
            losses = token_losses(new, data.old[index], data.reference[index], data.advantages[index], settings)
            ((losses * batch.scored).sum() / tokens).backward()
            kl += float((kl_estimate(new.detach(), data.reference[index]) * batch.scored).sum())
        torch.nn.utils.clip_grad_norm_(policy.parameters, 1.0)
        optimiser.step()
    return kl / float(data.batch.scored.sum())
