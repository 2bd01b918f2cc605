"""Problems to token batches: prompts padded on the left, completions on the right, so that all meet at one column."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.problems import messages
from data.problems.generate import Row, generate


@dataclass(frozen=True)
class Batch:
    """N token sequences with the completion in the last C of their P + C columns."""

    ids: Tensor
    """int64[N, P + C]"""
    mask: Tensor
    """int64[N, P + C]: 1 where a token is, 0 for padding and for what follows the end of a sequence."""
    prompt_columns: int
    """P"""

    @property
    def completions(self) -> Tensor:
        """int64[N, C]"""
        return self.ids[:, self.prompt_columns :]

    @property
    def scored(self) -> Tensor:
        """float32[N, C]: 1 for each token of a completion, its end of sequence included."""
        return self.mask[:, self.prompt_columns :].float()

    @property
    def positions(self) -> Tensor:
        """int64[N, P + C]: index of each token in its own sequence."""
        return (self.mask.cumsum(1) - 1).clamp(min=0)

    def finished(self, end: int) -> Tensor:
        """bool[N]: whether the completion ends with the token `end` and not by length."""
        return ((self.completions == end) & (self.scored > 0)).any(1)

    def rows(self, index: Tensor) -> Batch:
        """Some of the sequences, by int64 index."""
        return Batch(self.ids[index], self.mask[index], self.prompt_columns)


def pack(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad: int, device: torch.device
) -> Batch:
    """One batch of given completions; all of them empty for a batch to sample from."""
    left, right = max(map(len, prompts)), max(map(len, completions))
    ids = torch.full((len(prompts), left + right), pad)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start, stop = left - len(prompt), left + len(completion)
        ids[row, start:stop] = torch.tensor([*prompt, *completion])
        mask[row, start:stop] = 1
    return Batch(ids.to(device), mask.to(device), left)


def sampled(ids: Tensor, prompt_mask: Tensor, end: int) -> Batch:
    """The batch that `generate` returned as `ids`: a completion reaches up to its first `end`."""
    columns = prompt_mask.shape[1]
    is_end = (ids[:, columns:] == end).long()
    before_end = is_end.cumsum(1) - is_end == 0
    return Batch(ids, torch.cat([prompt_mask, before_end.long()], 1), columns)


def prompt_ids(tokenizer: Any, rows: Sequence[Row]) -> list[list[int]]:
    """Token ids of each problem's prompt, the one that the engines send."""
    texts = [
        tokenizer.apply_chat_template(messages(row["question"]), add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def training_rows(count: int, seed: int, without: Collection[Row] = ()) -> list[Row]:
    """Up to `count` problems of the train split; none shares its question with `without`."""
    taken = {row["question"] for row in without}
    return [row for row in generate("train", count, seed) if row["question"] not in taken]


def endless(rows: Sequence[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Batches of `size` problems for ever, each pass over them in a new order."""
    waiting: list[Row] = []
    while True:
        while len(waiting) < size:
            waiting += rng.sample(rows, len(rows))
        yield [waiting.pop() for _ in range(size)]
