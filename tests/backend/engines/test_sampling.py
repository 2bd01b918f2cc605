"""The draw against the exact distribution, against plain arithmetic, and against itself in other company."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from backend.engines import sampling
from backend.engines.sampling import draw, uniform


def many(logits: list[float], draws: int, temperature: float, top_p: float) -> Tensor:
    """`draws` tokens from one distribution, each with a seed of its own; counts per id."""
    rows = torch.tensor(logits).expand(draws, -1)
    seeds, indices = torch.arange(draws), torch.zeros(draws, dtype=torch.int64)
    how = (torch.full((draws,), temperature, dtype=torch.float64), torch.full((draws,), top_p, dtype=torch.float64))
    return draw(rows, seeds, indices, *how).bincount(minlength=len(logits))


def arguments(rows: int, temperature: float = 0.7, top_p: float = 0.95) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.arange(rows) * 7919,
        torch.arange(rows) % 5,
        torch.full((rows,), temperature, dtype=torch.float64),
        torch.full((rows,), top_p, dtype=torch.float64),
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_draws_follow_the_distribution(temperature: float) -> None:
    logits = [2.0, 1.5, 0.0, -1.0, 3.0]
    counts = many(logits, 40_000, temperature, 1.0)
    weights = [math.exp(value / temperature) for value in logits]
    expected = [40_000 * weight / sum(weights) for weight in weights]
    assert stats.chisquare(counts.numpy(), expected).pvalue > 1e-4


def test_noise_is_uniform_over_seeds_indices_and_ids() -> None:
    for seeds, indices, ids in (
        (torch.arange(50_000), torch.tensor(3), torch.tensor(11)),
        (torch.tensor(3), torch.arange(50_000), torch.tensor(11)),
        (torch.tensor(2**31 - 1), torch.tensor(0), torch.arange(50_000)),
    ):
        numbers = uniform(seeds, indices, ids)
        assert float(numbers.min()) > 0
        assert float(numbers.max()) < 1
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-4
        neighbours = stats.pearsonr(numbers[1:].numpy(), numbers[:-1].numpy())
        assert abs(neighbours.statistic) < 0.02


def test_noise_is_splitmix64() -> None:
    """Against the same arithmetic in Python's integers."""
    wrap, step = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & wrap
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & wrap
        return bits ^ (bits >> 31)

    for seed, index, token in ((0, 0, 0), (2**31 - 1, 4095, 151_000), (12345, 7, 2)):
        bits = mix((mix(mix(seed * step & wrap) + index * step & wrap) + token * step) & wrap)
        expected = ((bits >> 12) + 0.5) * 2.0**-52
        assert float(uniform(*(torch.tensor(value) for value in (seed, index, token)))) == expected


def test_the_nucleus_is_the_fewest_tokens_that_reach_the_mass() -> None:
    logits = [math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]
    for top_p, kept in ((0.4, 1), (0.6, 2), (0.9, 3), (0.96, 4), (1.0, 4)):
        counts = many(logits, 4_000, 1.0, top_p)
        assert (counts > 0).tolist() == [i < kept for i in range(4)], top_p


def test_tokens_as_probable_as_the_last_one_kept_stay() -> None:
    counts = many([1.0, 0.0, 0.0, 0.0, -9.0], 4_000, 1.0, 0.5)
    assert (counts > 0).tolist() == [True, True, True, True, False]


def test_a_draw_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 5_000) * 3
    together = draw(logits, *arguments(64))
    order = torch.randperm(64)
    seeds, indices, temperatures, top_p = arguments(64)
    shuffled = draw(logits[order], seeds[order], indices[order], temperatures, top_p)
    assert shuffled.tolist() == together[order].tolist()
    alone = [
        int(draw(logits[i : i + 1], seeds[i : i + 1], indices[i : i + 1], temperatures[:1], top_p[:1]))
        for i in range(64)
    ]
    assert alone == together.tolist()


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_the_first_candidates_decide_as_the_whole_vocabulary_does(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat rows reach beyond the candidates, peaked ones do not, and a batch may hold both."""
    torch.manual_seed(1)
    logits = torch.randn(48, 3_000).bfloat16() * spread
    few = draw(logits, *arguments(48))
    monkeypatch.setattr(sampling, "CANDIDATES", 3_000)
    assert draw(logits, *arguments(48)).tolist() == few.tolist()


def test_minus_infinity_is_never_drawn() -> None:
    counts = many([0.0, -math.inf, 0.0, -math.inf], 2_000, 1.0, 1.0)
    assert (counts > 0).tolist() == [True, False, True, False]
