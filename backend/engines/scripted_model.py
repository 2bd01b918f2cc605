"""A written-down language model for tests: the next-token distribution is a pure function of the prefix.

It writes `Plan: →b, →a, →c.⏎Answer: 42` one byte a token. The letters are choices, most of them close calls; a letter
other than the good one turns the outcome over, a second one turns it back. The answer is the sum of the whole numbers
in the prompt, plus one where the outcome is wrong. By a hash of the prompt, a quarter of the prompts is always right,
a quarter never, the rest depends on the letters. One letter leads into rambling without an answer.

Its top-k lists are unsorted and contain what real ones do: ties, 0.0 (probability 1) beside −inf, special tokens.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from backend.records import TopK

START, END, TURN = 256, 257, 258
"""Special tokens; ids below 256 are bytes."""

SPECIAL_BYTES = {START: b"<|start|>", END: b"<|end|>", TURN: b"<|turn|>"}
SPECIAL_IDS = sorted(SPECIAL_BYTES)

GOOD_LETTERS = b"abcd"
RAMBLE_LETTER = ord("z")
ARROW = "→".encode()
IMPOSSIBLE = -math.inf

Slot = Literal["choice", "end", "ramble", "over"]


def mix(value: int) -> int:
    """A 64-bit hash of an integer (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def uniform(*keys: int) -> float:
    """A number in [0, 1) that depends on the keys alone."""
    state = 0
    for key in keys:
        state = mix(state ^ key)
    return state / 2**64


def extended(prefix_hash: int, token: int) -> int:
    """Hash of a prefix with one more token."""
    return zlib.crc32(token.to_bytes(2, "little"), prefix_hash)


@dataclass(slots=True)
class Reader:
    """The model's state after a prefix. `feed` moves it by one token, `next` is the distribution there."""

    prefix_hash: int
    character: int
    """Hash of the prompt: decides difficulty, length and good letters."""
    total: int
    """Sum of the whole numbers in the prompt."""
    pending: bytes
    """Text already decided on."""
    slot: Slot = "choice"
    """What comes when nothing is pending."""
    letters: int = 0
    """Letters chosen so far."""
    wrong: bool = False
    """Whether the outcome is turned over."""

    @classmethod
    def after_prompt(cls, model: str, prompt_ids: list[int]) -> Reader:
        text = b"".join(bytes([token]) for token in prompt_ids if token < 256)
        character = zlib.crc32(text, zlib.crc32(model.encode()))
        prefix_hash = character
        for token in prompt_ids:
            prefix_hash = extended(prefix_hash, token)
        total = sum(int(number) for number in re.findall(rb"(?<!\d)\d{1,9}(?!\d)", text))
        return cls(prefix_hash, character, total, b"Plan: " + ARROW)

    def copy(self) -> Reader:
        return Reader(self.prefix_hash, self.character, self.total, self.pending, self.slot, self.letters, self.wrong)

    def next(self) -> TopK:
        """The five most probable next tokens with their raw logprobs, in no particular order."""
        if self.pending:
            return _written(self.prefix_hash, self.pending[0])
        if self.slot == "choice":
            return _choice(self.prefix_hash)
        if self.slot == "end":
            return _weighted(self.prefix_hash, (END, ord("\n"), TURN, ord("."), ord(" ")), (0.6, 0.3, 0.05, 0.03, 0.02))
        if self.slot == "ramble":
            return _weighted(self.prefix_hash, (ord("h"), END, ord("."), ord("!"), TURN), (0.6, 0.3, 0.05, 0.03, 0.02))
        return _written(0, END)

    def feed(self, token: int) -> None:
        self.prefix_hash = extended(self.prefix_hash, token)
        if self.pending:
            if token != self.pending[0] and self.prefix_hash & 1:
                # A slip of the pen in the middle of the text: half of them matter.
                self.wrong = not self.wrong
            self.pending = self.pending[1:]
        elif self.slot == "choice":
            self._choose(token)
        elif self.slot == "ramble" and token != END:
            self.pending = b"m, "
        else:
            self.slot = "over"

    def _choose(self, token: int) -> None:
        if token == RAMBLE_LETTER:
            self.slot, self.pending = "ramble", b", "
            return
        good = GOOD_LETTERS[mix(self.character + self.letters) % 4]
        self.wrong ^= token != good
        self.letters += 1
        if self.letters < 3 + (self.character >> 8) % 3:
            self.pending = b", " + ARROW
        else:
            self.slot, self.pending = "end", b".\nAnswer: " + str(self._answer()).encode()

    def _answer(self) -> int:
        difficulty = self.character % 4
        if difficulty == 0:
            return self.total
        return self.total + (1 + self.wrong if difficulty == 1 else self.wrong)


def _rotated(prefix_hash: int, ids: list[int], logprobs: list[float]) -> TopK:
    """The same entries in another order: readers must sort by number."""
    by = prefix_hash % len(ids)
    return TopK(ids[by:] + ids[:by], logprobs[by:] + logprobs[:by])


@lru_cache(maxsize=1 << 16)
def _written(prefix_hash: int, byte: int) -> TopK:
    """All but certain of one token; every third time entirely."""
    ids = [byte] + [(byte + step) % 256 for step in (1, 2, 3, 4)]
    if mix(prefix_hash) % 3 == 0:
        return _rotated(prefix_hash, ids, [0.0] + [IMPOSSIBLE] * 4)
    rest = 0.1 - 0.09 * uniform(prefix_hash)
    return _rotated(prefix_hash, ids, [math.log(1 - rest)] + [math.log(rest * part) for part in (0.5, 0.25, 0.15, 0.1)])


@lru_cache(maxsize=1 << 16)
def _choice(prefix_hash: int) -> TopK:
    """A letter: confident, tied, or a close call with a margin of 0.05 to 0.95 nats, a third each."""
    first = mix(prefix_hash + 1) % 4
    letters = [GOOD_LETTERS[(first + step) % 4] for step in range(4)] + [RAMBLE_LETTER]
    kind = mix(prefix_hash + 2) % 3
    if kind == 0:
        return _weighted(prefix_hash, tuple(letters), (0.85, 0.08, 0.04, 0.02, 0.01))
    if kind == 1:
        return _weighted(prefix_hash, tuple(letters), (0.38, 0.38, 0.12, 0.08, 0.04))
    second = math.exp(-(0.05 + 0.9 * uniform(prefix_hash)))
    return _weighted(prefix_hash, tuple(letters), (1.0, second, 0.2, 0.12, 0.08))


@lru_cache(maxsize=1 << 16)
def _weighted(prefix_hash: int, ids: tuple[int, ...], weights: tuple[float, ...]) -> TopK:
    total = sum(weights)
    return _rotated(prefix_hash, list(ids), [math.log(weight / total) for weight in weights])


def token_bytes(token: int) -> bytes:
    """The bytes a token id stands for; none for an id beyond the vocabulary."""
    return bytes([token]) if token < 256 else SPECIAL_BYTES.get(token, b"")
