"""Figures: plain values in, a plotly figure out. Nothing here reads a store or computes a statistic.

Colours hold on a light and on a dark page and in all common kinds of colour blindness; every series also differs by
symbol, dash or pattern. Backgrounds are transparent and text colours are left to the page's theme. A figure carries no
title: `TITLES` has them, for the page to set as a heading. None is undefined and drawn as a gap, never as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from backend.charts.flips import FlipRate, ProblemFlips, credit_delta_histogram, flip_rate_bars, per_problem_excess
from backend.charts.logprobs import logprob_trace, margin_credit, probe_ecdf
from backend.charts.selection import jaccard_curves

__all__ = [
    "TITLES",
    "FlipRate",
    "ProblemFlips",
    "credit_delta_histogram",
    "flip_rate_bars",
    "jaccard_curves",
    "logprob_trace",
    "margin_credit",
    "per_problem_excess",
    "probe_ecdf",
]

TITLES: Final[Mapping[str, str]] = {
    "flip_rate_bars": "How often the sign of the credit flips",
    "jaccard_curves": "Agreement of the selected pivots",
    "credit_delta_histogram": "What re-feeding does to the credit",
    "probe_ecdf": "Perturbation of the first logprob",
    "logprob_trace": "Logprobs along a continuation",
    "per_problem_excess": "Excess flips by problem",
    "margin_credit": "Margin against credit",
}
