"""Drawing the next token so that a draw depends on its own seed, index and logits alone.

A continuation is replayed with its prefix resumed and with its prefix prefilled, in other batches and at other steps.
Passes may differ by numerics alone, so the noise of a draw is a hash of (seed, how many tokens were drawn before,
token id): no generator is advanced by anything else. A draw is the Gumbel-max of the nucleus.
"""

from __future__ import annotations

import torch
from torch import Tensor

CANDIDATES = 256
"""Most probable tokens looked at first; a nucleus that reaches beyond them takes the whole vocabulary."""

_INCREMENT = -0x61C8864680B583EB
"""2⁶⁴ over the golden ratio as a signed integer: SplitMix64's step (Steele, Lea and Flood 2014)."""
_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""SplitMix64's 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as signed integers."""


def draw(logits: Tensor, seeds: Tensor, indices: Tensor, temperatures: Tensor, top_p: Tensor) -> Tensor:
    """One token id a row.

    `logits` [rows, vocabulary] are the model's own, of any floating dtype. `seeds` and `indices` [rows] are int64: the
    request's seed and how many tokens it has drawn before. `temperatures` (> 0) and `top_p` in (0, 1] [rows] are
    float64. Returns int64 ids [rows]. The nucleus is the fewest most probable tokens whose mass reaches `top_p`; as
    probable ones stay together. Rows do not influence each other: sums are taken in double precision, so that the
    order in which a device adds cannot move a boundary.
    """
    scaled = logits.float()
    top, ids = scaled.topk(min(CANDIDATES, scaled.shape[1]), dim=1)
    mass = (scaled - top[:, :1]).div_(temperatures.float()[:, None]).exp_().sum(dim=1, dtype=torch.float64)
    kept = _nucleus(top, mass, temperatures, top_p)
    drawn = _gumbel_max(top, ids, kept, seeds, indices, temperatures)
    beyond = kept[:, -1]
    if top.shape[1] < scaled.shape[1] and bool(beyond.any()):
        rows = beyond.nonzero()[:, 0]
        top, ids = scaled[rows].sort(dim=1, descending=True)
        kept = _nucleus(top, mass[rows], temperatures[rows], top_p[rows])
        drawn[rows] = _gumbel_max(top, ids, kept, seeds[rows], indices[rows], temperatures[rows])
    return drawn


def _nucleus(top: Tensor, mass: Tensor, temperatures: Tensor, top_p: Tensor) -> Tensor:
    """Which of the descending `top` [rows, k] belong: those with less than `top_p` of the mass strictly above them."""
    weights = ((top - top[:, :1]) / temperatures.float()[:, None]).exp().double()
    above = weights.cumsum(dim=1) - weights
    first_of_its_value = torch.ones_like(top, dtype=torch.bool)
    first_of_its_value[:, 1:] = top[:, 1:] < top[:, :-1]
    above = torch.where(first_of_its_value, above, 0.0).cummax(dim=1).values
    return (above < (top_p * mass)[:, None]) | (top_p >= 1)[:, None]


def _gumbel_max(top: Tensor, ids: Tensor, kept: Tensor, seeds: Tensor, indices: Tensor, temperatures: Tensor) -> Tensor:
    noise = -(-uniform(seeds[:, None], indices[:, None], ids).log()).log()
    scores = torch.where(kept, top.double() / temperatures[:, None] + noise, -torch.inf)
    return ids.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0]


def uniform(seeds: Tensor, indices: Tensor, ids: Tensor) -> Tensor:
    """Numbers in (0, 1), float64, that (seed, index, token id) determine; the int64 arguments are broadcast."""
    request = _mix(_mix(seeds * _INCREMENT) + indices * _INCREMENT)
    bits = _mix(request + ids * _INCREMENT)
    return (_shift(bits, 12).double() + 0.5) * 2.0**-52


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser; the products wrap around."""
    bits = (bits ^ _shift(bits, 30)) * _MULTIPLIERS[0]
    bits = (bits ^ _shift(bits, 27)) * _MULTIPLIERS[1]
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, by: int) -> Tensor:
    """Shift right without dragging the sign along."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
