"""Figures: the numbers drawn are the numbers given, None is a gap, and other people's text is no mark-up."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from backend import charts
from backend.charts import FlipRate, ProblemFlips
from backend.charts.style import STYLES

HOSTILE = "<img src=x onerror=alert(1)>"


def curve(values: list[float | None], gap: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    """A report's `jaccard` rows over thresholds 1/k … 1."""
    k = len(values)
    return [
        {
            "threshold": (j + 1) / k,
            "refeed": {"jaccard": value, "chance": None if value is None else 0.25},
            "replica": {"jaccard": None if value is None else 1.0},
            "refeed_replica": {"jaccard": None},
            "gap_ci95": gap,
        }
        for j, value in enumerate(values)
    ]


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def every_figure() -> dict[str, go.Figure]:
    return {
        "flip_rate_bars": charts.flip_rate_bars(
            [FlipRate("replica", 10, 1, 0, (0.0, 0.2)), FlipRate("refeed", 10, 3, 2)]
        ),
        "jaccard_curves": charts.jaccard_curves(curve([0.5, None, 0.75, 1.0], (0.1, 0.3))),
        "credit_delta_histogram": charts.credit_delta_histogram({-1: 2, 0: 5, 3: 1}, 4, mean=0.01, ci95=(-0.1, 0.1)),
        "probe_ecdf": charts.probe_ecdf({"replica": [0.0, 0.0, 0.1], "refeed": [0.2, 0.3]}),
        "logprob_trace": charts.logprob_trace({"exact": [-0.5, 0.0], "refeed": [-0.5, None]}, difference=1),
        "per_problem_excess": charts.per_problem_excess([ProblemFlips("p", 4, 2, 1)], mean=0.25),
        "margin_credit": charts.margin_credit([0.5, None], [0.25, 0.0], [True, None]),
    }


def nothing() -> dict[str, go.Figure]:
    return {
        "flip_rate_bars": charts.flip_rate_bars([FlipRate("refeed", 0, 0, 0)]),
        "jaccard_curves": charts.jaccard_curves([]),
        "credit_delta_histogram": charts.credit_delta_histogram({}, 4),
        "probe_ecdf": charts.probe_ecdf({"refeed": []}),
        "logprob_trace": charts.logprob_trace({}),
        "per_problem_excess": charts.per_problem_excess([]),
        "margin_credit": charts.margin_credit([], [], []),
    }


@pytest.mark.parametrize("name", charts.TITLES)
def test_every_figure_fits_either_theme_and_an_empty_campaign(name: str) -> None:
    for figure in (every_figure()[name], nothing()[name]):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.title.text is None
        assert figure.layout.font.color is None
        assert "NaN" not in figure.to_json()
    assert figure.layout.height > 0


def test_every_pass_differs_by_more_than_its_colour() -> None:
    assert len({style.symbol for style in STYLES.values()}) == len(STYLES)
    assert len({(style.dash, style.symbol) for style in STYLES.values()}) == len(STYLES)


def test_flip_rates_are_percentages_of_one_denominator_with_their_interval() -> None:
    figure = charts.flip_rate_bars([FlipRate("replica", 200, 6, 2, (0.01, 0.1)), FlipRate("refeed", 200, 50, 10)])
    crossings, reversals = (
        next(trace for trace in traces(figure, part) if trace.showlegend is False)
        for part in ("zero crossing", "polarity reversal")
    )
    assert crossings.x == (3.0, 25.0)
    assert reversals.x == (1.0, 5.0)
    assert crossings.marker.pattern.shape != reversals.marker.pattern.shape
    (interval,) = traces(figure, "rate, 95 % interval")
    assert interval.x == (4.0,)  # refeed has none
    assert interval.x[0] + interval.error_x.array[0] == 10.0
    assert interval.x[0] - interval.error_x.arrayminus[0] == 1.0


def test_jaccard_is_a_step_function_with_a_gap_where_it_is_undefined() -> None:
    figure = charts.jaccard_curves(curve([0.5, None, 0.75, 1.0], (0.125, 0.25)))
    line, points = traces(figure, "refeed – exact")
    assert line.x == (0.0, 0.25, None, 0.5, 0.75, 0.75, 1.0)  # J(τ) holds from the threshold below up to τ
    assert line.y == (0.5, 0.5, None, 0.75, 0.75, 1.0, 1.0)
    assert points.x == (0.25, 0.75, 1.0)
    band = traces(figure, "ceiling − gap, 95 %")
    assert [(trace.x[0], trace.x[1], trace.y[0], trace.y[2]) for trace in band] == [
        (0.0, 0.25, 0.75, 0.875),
        (0.5, 0.75, 0.75, 0.875),
        (0.75, 1.0, 0.75, 0.875),
    ]
    assert traces(figure, "refeed – replica") == []


def test_jaccard_takes_thresholds_in_any_order() -> None:
    rows = curve([0.5, 0.25])
    assert charts.jaccard_curves(rows[::-1]).to_json() == charts.jaccard_curves(rows).to_json()


def test_the_histogram_stands_on_the_grid_of_the_estimator() -> None:
    figure = charts.credit_delta_histogram({-2: 1, 0: 7, 1: 3}, 4, mean=0.125, ci95=(0.0, 0.5), margin=0.02)
    bars = figure.data[0]
    assert bars.x == (-0.5, -0.25, 0.0, 0.25, 0.5)
    assert bars.y == (1, 0, 7, 3, 0)
    assert figure.layout.xaxis.ticktext == ("−0.5", "−0.25", "0", "+0.25", "+0.5")
    mean = figure.data[1]
    assert mean.name == "mean +0.1250, 95 % +0.0000 to +0.5000"
    assert (mean.x[0], mean.error_x.array[0], mean.error_x.arrayminus[0]) == (0.125, 0.375, 0.125)
    with pytest.raises(ValueError, match="k is 0"):
        charts.credit_delta_histogram({}, 0)


def test_the_probe_keeps_exact_zeros_out_of_the_logarithm() -> None:
    figure = charts.probe_ecdf({"replica": [0.0, 0.5, 0.0, 0.25], "refeed": [0.0, 0.0]})
    bars = [trace for trace in figure.data if trace.type == "bar"]
    curves = [trace for trace in figure.data if trace.type == "scatter"]
    assert [tuple(bar.y) for bar in bars] == [(0.5,), (1.0,)]
    assert list(curves[0].x) == [0.25, 0.5]
    assert list(curves[0].y) == [0.75, 1.0]
    assert list(curves[1].x) == []


def test_a_long_ecdf_is_thinned_and_keeps_its_ends() -> None:
    values = np.arange(1, 100_001) / 100_000
    (line,) = [trace for trace in charts.probe_ecdf({"refeed": values}).data if trace.type == "scatter"]
    assert len(line.x) <= 2_000
    assert (line.x[0], line.y[0], line.x[-1], line.y[-1]) == (1e-5, 1e-5, 1.0, 1.0)
    assert np.array_equal(line.x, line.y)  # of a uniform sample, at every point kept


def test_a_trace_shows_probability_one_and_breaks_at_none() -> None:
    figure = charts.logprob_trace({"exact": [-0.5, 0.0, None, -1.0]}, tokens=["a", HOSTILE, "\n"], difference=2)
    (line,) = figure.data
    assert line.y == (-0.5, 0.0, None, -1.0)
    assert line.connectgaps is False
    assert line.text[2] == "'\\n'"
    assert figure.layout.shapes[0].x0 == 2


def test_other_peoples_text_is_no_markup() -> None:
    figures = [
        charts.logprob_trace({"exact": [-1.0]}, tokens=[HOSTILE]),
        charts.per_problem_excess([ProblemFlips(HOSTILE, 1, 1, 0)]),
    ]
    for figure in figures:
        assert "<img" not in json.loads(json.dumps(figure.to_json()))
        assert re.search(r"&lt;img|\\u0026lt;img", figure.to_json())


def test_excess_by_problem_is_sorted_and_leaves_out_what_has_none() -> None:
    rows = [
        ProblemFlips("a", 4, 3, 1),
        ProblemFlips("b", 4, 0, 1),
        ProblemFlips("c", 0, 0, 0),
        ProblemFlips("d", 4, 2, None),
        ProblemFlips("e", 8, 1, 1),
    ]
    figure = charts.per_problem_excess(rows, mean=0.125)
    dots = figure.data[0]
    assert dots.x == (-25.0, 0.0, 50.0)
    assert [row[0] for row in dots.customdata] == ["b", "e", "a"]
    assert len(set(dots.marker.symbol)) == 3  # the sign has a shape
    assert dots.marker.size[1] == max(dots.marker.size)
    assert figure.layout.annotations[0].text == "mean +12.5 pp"


def test_margin_against_credit_puts_flips_apart_and_drops_unknown_margins() -> None:
    figure = charts.margin_credit([0.0, 0.5, None, 0.75], [0.25, 0.0, 1.0, -1.0], [True, False, True, None])
    drawn = {trace.name: (trace.x, trace.y) for trace in figure.data}
    assert drawn == {
        "sign agrees, 1": ((0.5,), (0.0,)),
        "sign flips under refeed, 1": ((0.0,), (0.25,)),
        "not compared, 1": ((0.75,), (-1.0,)),
    }
    assert {trace.type for trace in figure.data} == {"scattergl"}


def test_the_published_pool_is_drawn_as_reported(shared: Path) -> None:
    pool = json.loads((shared / "receipts" / "oracle.json").read_text(encoding="utf-8"))["pooled"]
    line, points = traces(charts.jaccard_curves(pool["jaccard"]), "refeed – exact")
    assert list(points.y) == [row["refeed"]["jaccard"] for row in pool["jaccard"]]
    assert Counter(line.y) == Counter({row["refeed"]["jaccard"]: 2 for row in pool["jaccard"]})
    rates = [
        FlipRate(name, pool["eligible"], pool[name]["zero_crossings"], pool[name]["polarity_reversals"])
        for name in ("replica", "refeed")
    ]
    crossings, _, reversals, _, _ = charts.flip_rate_bars(rates).data
    for index, name in enumerate(("replica", "refeed")):
        assert crossings.x[index] + reversals.x[index] == pytest.approx(100 * pool[name]["rate"], abs=1e-9)
