"""Supervised training on worked solutions, stopped once the policy is good enough to explore from.

A policy that is always right has no pivots and leaves reinforcement nothing to do, so training ends at a target
accuracy on problems of the train split that it is not trained on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from data.problems.generate import Row
from data.training.batches import endless, pack, prompt_ids, training_rows
from data.training.curves import Curve
from data.training.phrasing import phrase
from data.training.policy import Policy, completion_logits, token_logprobs
from data.training.schedule import Schedule

TRAINING_SEED, VALIDATION_SEED = 1, 2
COLUMNS = ("step", "seconds", "learning_rate", "loss", "validation_accuracy")


@dataclass(frozen=True)
class SftSettings:
    """What supervised training does. Accuracy is a share, time is in seconds."""

    seconds: float = 330.0
    steps: int = 600
    rows: int = 128
    """Solutions a step."""
    learning_rate: float = 8e-4
    problems: int = 8192
    target: float = 0.56
    """Validation accuracy, sampled as campaigns sample, that ends the training."""
    validate_every: int = 40
    validation_problems: int = 512
    max_tokens: int = 176


def train_sft(policy: Policy, settings: SftSettings, curve: Curve) -> dict[str, object]:
    """Train the policy's adapter; return what was done, for the card."""
    validation = training_rows(settings.validation_problems, VALIDATION_SEED)
    training = training_rows(settings.problems, TRAINING_SEED, without=validation)
    rng = random.Random(TRAINING_SEED)
    batches = endless(training, settings.rows, rng)
    optimiser = torch.optim.AdamW(policy.parameters, weight_decay=0.0)
    schedule = Schedule(settings.steps, settings.seconds, optimiser, settings.learning_rate)
    step, accuracy = 0, None
    policy.trained.train()
    for step in schedule:
        loss = _step(policy, optimiser, next(batches), rng)
        accuracy = _accuracy(policy, validation, settings) if step % settings.validate_every == 0 else None
        curve.add(step, schedule.elapsed, optimiser.param_groups[0]["lr"], loss, accuracy)
        if accuracy is not None and accuracy >= settings.target:
            break
    return {
        "steps": step,
        "seconds": round(schedule.elapsed),
        "problems": len(training),
        "solutions": step * settings.rows,
    }


def _step(policy: Policy, optimiser: torch.optim.Optimizer, rows: list[Row], rng: random.Random) -> float:
    """One update on newly worded solutions; return the mean loss a token in nats."""
    solutions = policy.tokenizer([phrase(row, rng) for row in rows], add_special_tokens=False)["input_ids"]
    completions = [[*ids, policy.end] for ids in solutions]
    batch = pack(prompt_ids(policy.tokenizer, rows), completions, policy.end, policy.device)
    with policy.autocast():
        logprobs = token_logprobs(completion_logits(policy.trained, batch), batch)
    loss = -(logprobs * batch.scored).sum() / batch.scored.sum()
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters, 1.0)
    optimiser.step()
    return float(loss.detach())


def _accuracy(policy: Policy, rows: list[Row], settings: SftSettings) -> float:
    """Share of the validation problems that one sample a problem gets right."""
    policy.synchronise()
    batch = policy.sample(rows, temperature=0.7, top_p=0.95, max_tokens=settings.max_tokens)
    return float(policy.right(batch, rows).float().mean())
