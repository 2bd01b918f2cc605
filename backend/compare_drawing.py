"""The compare page's four views: metrics and differences, curves, transcripts in columns, critical tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import streamlit as st

from backend import address, compare_columns, compare_metrics, compare_tables, sides
from backend import compare_view as view
from backend.charts import comparison as charts
from backend.comparing import Difference
from backend.drawing import column_config, download_csv, plain, show_table
from backend.live import Place
from backend.replay_panel import replay_settings
from backend.selection import attainable_thresholds, parse_threshold
from backend.sides import Comparison
from backend.store import Store
from backend.tables import Column, Table
from backend.transcript import COLOURS

PLOTLY = {"displaylogo": False}
FILE = "compare"
"""How downloads begin."""

Documents = Sequence[Mapping[str, Any]]


def metrics(store: Store, comparison: Comparison, names: Sequence[str], documents: Documents, against: int) -> None:
    """What was set differently, every metric side by side, and the differences with their intervals."""
    found = sides.differences_of(store, comparison, 0, against)
    pairs = [(place, sides.differences_of(store, comparison, 0, place)) for place in range(1, len(names))]
    st.subheader(f"{plain(names[against])} − {plain(names[0])}")
    if any(one.difference is not None for one in found):
        _differences(names, against, pairs)
    else:
        st.markdown("They share no problem, so there is no difference to estimate; their own metrics stand below.")
    settings = compare_metrics.settings_table(store, comparison)
    st.subheader("What was set differently")
    if settings.rows:
        with st.expander(f"{len(settings.rows)} facts", icon=":material/tune:", expanded=len(settings.rows) <= 8):
            _beside([{c.label: row[c.key] for c in settings.columns} for row in settings.rows], settings.title)
    else:
        st.markdown("Nothing that is on record: model, sampling, filter and engine facts are equal.")
    st.subheader("Metrics")
    _beside(compare_metrics.metrics_beside(comparison, documents), "Every metric, a column a campaign")
    st.caption("Each campaign over all of its own problems, with 95 % intervals. – is undefined or not measured.")
    download_csv(compare_metrics.metrics_table(comparison, documents), FILE)


def _differences(names: Sequence[str], against: int, pairs: Sequence[tuple[int, Sequence[Difference]]]) -> None:
    found = dict(pairs)[against]
    st.plotly_chart(
        charts.difference_forest([(place, names[place], view.contrasts(one)) for place, one in pairs]),
        width="stretch",
        key="compare_forest",
        config=PLOTLY,
        alt=view.headline(names[0], names[against], found),
    )
    st.caption(
        "Each difference with its 95 % interval by resampling whole problems that both finished, a problem with its "
        "pivots of both. Filled, and bold below: the interval leaves out 0. Among this many quantities one in twenty "
        "does so by chance."
    )
    rows = compare_tables.differences_beside(names[0], names[against], found)
    _beside(rows, "Differences with their 95 % intervals")
    download_csv(compare_tables.differences_table(names[0], names[against], found), FILE)


def _beside(rows: Sequence[Mapping[str, str]], alt: str) -> None:
    """A table of texts under campaigns' names."""
    shown = [{plain(head): _cell(cell) for head, cell in row.items()} for row in rows]
    st.table(shown, hide_index=True, border="horizontal", alt=alt)


def _cell(text: str) -> str:
    strong = text.startswith("**") and text.endswith("**") and len(text) > 4
    return f"**{plain(text[2:-2])}**" if strong else plain(text)


def curves(store: Store, comparison: Comparison, names: Sequence[str], documents: Documents) -> None:
    """The Jaccard curves under their ceilings, and the flips by position and by margin."""
    lines = [(name, document["jaccard"]) for name, document in zip(names, documents, strict=True)]
    st.subheader("Agreement of the selected pivots")
    forms = ["One chart", "Small multiples"]
    form = st.segmented_control(
        "Jaccard curves",
        forms,
        default=forms[len(names) > 2],
        required=True,
        key="curves",
        bind="query-params",
        label_visibility="collapsed",
    )
    draw = charts.compared_jaccard_curves if form == forms[0] else charts.jaccard_multiples
    alt = "Jaccard index of refeed with exact over the threshold, each campaign under its ceiling"
    st.plotly_chart(draw(lines), width="stretch", key="compare_jaccard", config=PLOTLY, alt=alt)
    st.caption(
        "How far refeed selects the pivots that exact selects at |Â| ≥ τ, and its ceiling: the same for an identical "
        "repeat. Read a curve against its own ceiling first; another k has another grid."
    )
    for place in view.places(store, comparison, names):
        st.subheader(place.title)
        labels = [compare_tables.bin_label(one) for one in place.bins]
        figure = charts.flips_by_place(labels, place.rates, axis=place.axis)
        st.plotly_chart(figure, width="stretch", key=f"compare_{place.key}", config=PLOTLY, alt=place.title)
        with st.expander("Numbers", icon=":material/table:"):
            show_table(compare_tables.places_table(place.key, place.title, place.bins, place.campaigns), FILE)


# Transcripts


def transcripts(store: Store, comparison: Comparison, names: Sequence[str]) -> None:
    """One problem's rollouts in columns, the problem on which the campaigns disagree most first."""
    held = [place for place, text in enumerate(comparison.texts) if text]
    if silent := [names[place] for place in range(len(names)) if place not in held]:
        verb = "holds" if len(silent) == 1 else "hold"
        st.info(
            f"{plain(' and '.join(silent))} {verb} no transcripts: a receipt has measurements alone. "
            "Metrics and curves compare all the same.",
            icon=":material/receipt_long:",
        )
    ranked = {one.problem: one for one in view.ranked_problems(comparison, held)} if len(held) > 1 else {}
    if not ranked:
        st.info("No two of these campaigns hold transcripts of one problem.", icon=":material/notes:")
        return
    asked = address.read("problem")
    st.session_state.compare_problem = asked if asked in ranked else next(iter(ranked))
    problem = st.selectbox(
        "Problem, the largest disagreement first",
        ranked,
        format_func=lambda name: f"{name}: {ranked[name].title}",
        key="compare_problem",
        on_change=_chose_problem,
        args=(ranked,),
    )
    address.write(problem=problem)
    there = {place: store.rollouts(comparison.campaigns[place], problem) for place in held}
    there = {place: [row for row in rows if row["tokens"]] for place, rows in there.items()}
    columns = _columns(store, comparison, names, problem, {place: rows for place, rows in there.items() if rows})
    first = columns[0].picked
    with st.container(border=True):
        st.text(first.question or "The question is not on record.")
        st.caption(f"Right answer: {plain(first.gold)}" if first.gold is not None else "There is no gold answer.")
    st.markdown(plain(compare_columns.parting(columns)))
    left, middle, right = st.columns([3, 2, 2], vertical_alignment="bottom")
    colour = left.segmented_control(
        "Colour by", COLOURS, default="credit", required=True, key="colour", bind="query-params"
    )
    intensity = middle.slider("Intensity", 0.2, 3.0, 1.0, 0.1, key="compare_intensity")
    with right:
        k, limit = replay_settings("compare_")
    opened = compare_columns.read_pick(columns)
    st.fragment(compare_columns.transcripts)(columns, opened, colour or "credit", intensity, k, limit)


def _chose_problem(ranked: Collection[str]) -> None:
    # A running campaign moves what a problem is called, and Streamlit then reports the old title.
    if (problem := st.session_state.compare_problem) in ranked:
        address.write(problem=problem, rollouts=None, picked=None)


def _columns(
    store: Store, comparison: Comparison, names: Sequence[str], problem: str, there: Mapping[int, Sequence[Any]]
) -> list[compare_columns.Column]:
    """The pickers of the rollouts, a row of them, and the columns they name."""
    numbers = view.chosen_rollouts(there, (address.read("rollouts") or "").split(","), view.same_model(comparison))

    def chose() -> None:
        picked = [st.session_state[f"compare_rollout_{place}"] for place in there]
        # The best and the worst can change while a campaign runs, and Streamlit then reports a picker's old title.
        if all(isinstance(number, int) for number in picked):
            address.write(rollouts=",".join(map(str, picked)), picked=None)

    def jump(choice: Mapping[int, int]) -> None:
        address.write(rollouts=",".join(str(choice[place]) for place in there), picked=None)

    with st.container(horizontal=True):
        for label, icon, choice in view.rollout_choices(there):
            st.button(label, icon=icon, type="tertiary", key=f"compare_{label}", on_click=jump, args=(choice,))
    for drawn, place in zip(st.columns(len(there), gap="small"), there, strict=True):
        titles = view.offered(there[place])
        st.session_state[f"compare_rollout_{place}"] = numbers[place]
        drawn.selectbox(
            f"Rollout of {plain(names[place])}",
            titles,
            format_func=titles.__getitem__,
            key=f"compare_rollout_{place}",
            on_change=chose,
        )
    address.write(rollouts=",".join(str(numbers[place]) for place in there))
    campaigns = comparison.campaigns
    return compare_columns.aligned(
        [
            compare_columns.read(store, place, names[place], Place(campaigns[place], problem, numbers[place]))
            for place in there
        ]
    )


# Critical tokens


def critical(store: Store, comparison: Comparison, names: Sequence[str], against: int) -> None:
    """Which critical tokens both campaigns select and which only one, in their text."""
    ks = {side.credits.k for side in (comparison.sides[0], comparison.sides[against])}
    grid = sorted({f"{float(step):g}" for k in ks for step in attainable_thresholds(k)}, key=float)
    default = "0.5" if "0.5" in grid else grid[-1]
    threshold = st.select_slider("Critical from |Â| ≥", grid, default, key="threshold", bind="query-params")
    found = sides.critical_of(store, comparison, 0, against, parse_threshold(threshold))
    if found is None:
        st.info("These two hold no rollout of one problem and number as text, so they have no token in common.")
        return
    st.markdown(f"#### {plain(view.overlap_sentence(names[0], names[against], found))}")
    st.caption(plain(view.overlap_doubt(names[0], names[against], found)))
    counts = dict(zip(view.SELECTED_BY, (found.both, found.only_first, found.only_second), strict=True))
    heads = {"both": "Both", "first": f"Only {names[0]}", "second": f"Only {names[against]}"}
    chosen = st.pills(
        "Selected by",
        view.SELECTED_BY,
        selection_mode="multi",
        default=view.SELECTED_BY,
        format_func=lambda by: f"{plain(heads[by])} ({counts[by]})",
        key="compare_selected_by",
    )
    rows = [row for row in view.critical_rows(store, comparison, 0, against, found) if row["selected_by"] in chosen]
    rows = [{**row, "selected_by": heads[row["selected_by"]]} for row in rows]
    if not rows:
        return
    table = Table(
        "critical",
        "Critical tokens in their text",
        (
            Column("selected_by", "selected by"),
            Column("first", f"Â {names[0]}", "number"),
            Column("second", f"Â {names[against]}", "number"),
            Column("text", "token in its text"),
            Column("problem", "problem"),
            Column("rollout", "rollout", "count"),
            Column("position", "position", "count"),
        ),
        rows,
    )
    picked = st.dataframe(
        table.frame(),
        width="stretch",
        hide_index=True,
        column_config={
            **column_config(table),
            "first": st.column_config.NumberColumn(f"Â {names[0]}", format="%+.2f", width=190),
            "second": st.column_config.NumberColumn(f"Â {names[against]}", format="%+.2f", width=190),
            "selected_by": st.column_config.TextColumn("selected by", width=210),
            "text": st.column_config.TextColumn("token in its text", width=340),
        },
        on_select="rerun",
        selection_mode="single-row",
        key="compare_critical",
        alt=table.title,
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        at = next((rows[row] for row in picked.selection.rows if row < len(rows)), None)
        if at is None:
            st.caption(":material/check_box: Tick a row to see the token in both transcripts.")
        else:
            st.button(
                "See it in both transcripts", icon=":material/notes:", key="compare_see", on_click=_see, args=(at,)
            )
        st.space("stretch")
        download_csv(table, FILE)
    if len(found.rows) > view.MOST_TOKENS:
        st.caption(f"The {view.MOST_TOKENS} tokens with the largest |Â|, of {len(found.rows):,}.")


def _see(row: Mapping[str, Any]) -> None:
    number = row["rollout"]
    address.write(problem=row["problem"], rollouts=f"{number},{number}", picked=f"0-{row['position']}")
    st.session_state.view = "Transcripts"
