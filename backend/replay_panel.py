"""A picked token below a transcript: what is stored of it, the button that replays it, and a replay while it runs."""

from __future__ import annotations

import math
from dataclasses import replace

import streamlit as st

from backend import live_jobs
from backend.dashboard import jobs, sentence
from backend.errors import UserError
from backend.jobs import Job
from backend.picked import Picked
from backend.records import PASSES, STANDARD_PASSES
from backend.token_panel import heading, panel
from backend.transcript_view import Run, token_text

K, LIMIT = 4, 64
"""Continuations an arm and tokens a continuation of a click, unless the reader asks for others."""


def replay_settings(key: str = "") -> tuple[int, int]:
    """A popover that asks for continuations an arm and tokens a continuation."""
    with st.popover("Replay settings", icon=":material/tune:", width="stretch"):
        k = st.select_slider("Continuations an arm (k)", [1, 2, 4, 8, 16], K, key=f"{key}k")
        limit = st.select_slider("Tokens a continuation", [16, 32, 64, 96, 128, 200, 400], LIMIT, key=f"{key}limit")
    return int(k), int(limit)


def clicked(picked: Picked, position: int, k: int, limit: int) -> None:
    """A click on a token: what is stored of it will be shown; what is not is replayed."""
    if not _runs_stored(picked, position) and picked.can_cut(position):
        live_jobs.submit_replay(jobs(), picked.place, position, k, limit)


def token(picked: Picked, position: int, k: int, limit: int, *, key: str = "") -> None:
    """Draw the picked token inside a fragment; `key` begins the widgets' keys."""
    job = jobs().find(live_jobs.replay_key(picked.place, position))
    if job is not None and not job.over:
        st.fragment(_running, run_every=0.5)(picked, position, job.id, key)
    elif _runs_stored(picked, position) != {run.run for run in picked.runs(position)}:
        st.rerun()
    else:
        _stored(picked, position, k, limit, job, key)


def _runs_stored(picked: Picked, position: int) -> set[str]:
    """The runs at a position as the store has them now.

    A fragment is drawn again with the rollout that was read for the page; meanwhile somebody else may have replayed
    the token, or its own replay was over before the first look at it.
    """
    return jobs().store.runs_at(picked.place.campaign, picked.place.problem, picked.place.rollout, position)


def _running(picked: Picked, position: int, number: int, key: str) -> None:
    """The passes as they arrive; the page is drawn anew once they are all there."""
    job = jobs().job(number)
    if job is None or job.over:
        st.rerun()
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    said = f"{sentence(job.phase or job.state).removesuffix('.')} · {job.tokens:,} tokens · {job.seconds:.0f} s"
    if job.phase in PASSES or job.fraction is None:
        left.caption(said)  # a pass has its bar in its card
    else:
        left.progress(job.fraction, text=said)
    right.button("Cancel", key=f"{key}cancel-{number}", on_click=jobs().cancel, args=(number,), width="stretch")
    texts = dict(picked.texts)
    for _, more in job.passes.values():
        texts.update(more)
    panel(
        picked.pivot(position, job.about),
        {name: one for name, (one, _) in job.passes.items()},
        STANDARD_PASSES,
        texts,
        key=f"{key}live-{number}",
        running=job.phase,
        fraction=job.fraction,
    )


def _stored(picked: Picked, position: int, k: int, limit: int, job: Job | None, key: str) -> None:
    """What the store holds of a token, and the button that replays it."""
    if job is not None and job.state == "failed":
        st.error(sentence(job.error or "the replay failed"), icon=":material/error:")
    runs = picked.runs(position)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = _choose(picked, position, runs, job, key)
        other = _replacement(picked, position, chosen, key)
        try:
            pivot = picked.pivot(position, other)
        except UserError as fault:
            st.info(sentence(str(fault)))
            return
        again = "Replay again" if runs else "Replay three ways"
        if st.button(f"{again} (k = {k}, {limit} tokens)", key=f"{key}replay-{position}", icon=":material/replay:"):
            live_jobs.submit_replay(jobs(), picked.place, position, k, limit, pivot.alternative)
            st.rerun(scope="fragment")
    if chosen is None:
        heading(pivot, picked.texts)
        return
    panel(
        replace(pivot, alternative=picked.alternative(position, chosen)),
        chosen.by_pass,
        [one.pass_ for one in chosen.measurements],
        picked.texts,
        key=f"{key}stored-{position}-{chosen.run}",
        batch_invariant=picked.batch_invariant(chosen),
        engine=picked.engine_of(chosen),
    )


def _choose(picked: Picked, position: int, runs: list[Run], job: Job | None, key: str) -> Run | None:
    """The run to show: the only one, else the reader's choice, which a finished replay moves to itself."""
    if len(runs) < 2:
        return runs[0] if runs else None
    by_name = {run.run: run for run in runs}
    names = list(by_name)
    new = job.result["run"] if job is not None and job.state == "done" else None
    found = st.selectbox(
        "Run",
        names,
        index=names.index(new) if new in by_name else 0,
        format_func=lambda name: _title(picked, by_name[name]) if name in by_name else name,
        # The number of runs is in the key: with one more the box starts anew, at the new one.
        key=f"{key}run-{picked.place.handle}-{position}-{len(runs)}",
        width=420,
    )
    return by_name.get(found, runs[0])


def _replacement(picked: Picked, position: int, shown: Run | None, key: str) -> int | None:
    """The token to put in the actual one's place: the reader's choice among those on record.

    At first it is that of the run that is shown, so that it can be replayed again, or else the likeliest.
    """
    likely = dict(picked.choices(position))
    if len(likely) < 2:
        return next(iter(likely), None)
    there = None if shown is None else shown.alternative
    return st.selectbox(
        "In its place",
        list(likely),
        index=list(likely).index(there) if there in likely else 0,
        format_func=lambda token: f"{token_text(token, picked.texts)!r}, {100 * math.exp(likely[token]):.1f} %",
        key=f"{key}other-{picked.place.handle}-{position}-{shown.run if shown else None}",
        width=180,
    )


def _title(picked: Picked, run: Run) -> str:
    title = run.title if run.alternative is None else f"{run.title} with {token_text(run.alternative, picked.texts)!r}"
    engine = picked.engine_of(run).get("engine")
    return f"{title}, {engine}" if engine else title
