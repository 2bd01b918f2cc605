"""Transcript: a rollout's tokens coloured by credit; click one and watch it being replayed three ways."""

from __future__ import annotations

import streamlit as st

from backend import address, dashboard, live_jobs
from backend.jobs import Job
from backend.live import Place
from backend.rollout_picker import Picked, pick_rollout, sampling_form
from backend.token_panel import heading, panel
from backend.transcript import COLOURS, token_transcript
from backend.transcript_view import pivot_at_position, runs_of

# Continuations an arm and tokens a continuation of a click, unless the reader asks for others.
K, LIMIT = 4, 64


def main() -> None:
    st.title("Transcript")
    with dashboard.sentences():
        jobs = dashboard.jobs()
        with st.sidebar:
            picked = pick_rollout(jobs)
        sampling_form(jobs, expanded=picked is None)
        if picked is None:
            st.info(
                "Sample a rollout above, then click any token of it: Pivotscope cuts there, puts the most probable "
                "other token in its place and replays both ways on."
            )
            return
        header(picked)
        measuring(picked)
        workbench(picked)


def header(picked: Picked) -> None:
    """The question and how the rollout ended."""
    rollout = picked.rollout
    verdict = {True: ":material/check: right", False: ":material/close: wrong", None: "not graded"}[rollout.correct]
    with st.container(border=True):
        st.text(picked.question or "The question is not on record.")
        facts = [
            f"answer {rollout.answer!r}" if rollout.answer is not None else "no answer",
            f"gold {picked.gold!r}" if picked.gold is not None else "no gold answer: graded against this rollout's own",
            f"{len(rollout.ids)} tokens",
            f"ended by {rollout.finish_reason}",
            picked.origin,
        ]
        st.markdown(f"{verdict} · {dashboard.escaped(' · '.join(facts))}")


def measuring(picked: Picked) -> None:
    """One button that measures the pivots the campaign's filter picks."""
    if picked.bundled:
        return
    job = dashboard.jobs().find(live_jobs.measure_key(picked.place))
    if job is not None and not job.over:
        st.fragment(watch, run_every=0.5)(job.id)
        return
    if job is not None and job.error:
        st.warning(dashboard.sentence(job.error))
    if not picked.unmeasured:
        st.caption(f"All {picked.pivots} pivots of the filter are measured in this rollout.")
        return

    def start() -> None:
        live_jobs.submit_measure(dashboard.jobs(), picked.place)

    st.button(
        f"Measure the {picked.unmeasured} pivots of this rollout",
        key="measure",
        icon=":material/science:",
        help="Replays the low-margin positions that the campaign's filter picks, three ways each.",
        on_click=start,
    )


def watch(number: int) -> None:
    """A running job's bar and its cancel button; the page is drawn anew once it is over."""
    job = dashboard.jobs().job(number)
    if job is None or job.over:
        st.rerun()
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(job.fraction or 0.0, text=f"{job.title}: {job.phase or job.state} · {job.seconds:.0f} s")
    right.button("Cancel", key=f"cancel-{number}", on_click=dashboard.jobs().cancel, args=(number,))


def workbench(picked: Picked) -> None:
    """The transcript, and the panel of the token that is picked."""
    left, middle, right = st.columns([3, 2, 2], vertical_alignment="bottom")
    colour = left.segmented_control("Colour by", COLOURS, default="credit", required=True, key="colour")
    intensity = middle.slider("Intensity", 0.2, 3.0, 1.0, 0.1, key="intensity")
    with right.popover("Replay settings", icon=":material/tune:", width="stretch"):
        k = st.select_slider("Continuations an arm (k)", [1, 2, 4, 8, 16], K, key="k")
        limit = st.select_slider("Tokens a continuation", [32, 64, 96, 128, 200, 400], LIMIT, key="limit")
    st.fragment(reading)(picked, colour or "credit", intensity, int(k), int(limit))


def reading(picked: Picked, colour: str, intensity: float, k: int, limit: int) -> None:
    """A fragment: a click redraws this and nothing else."""
    position = address.read_int("position")
    token_transcript(
        picked.view,
        key=f"tokens-{picked.place.handle}",
        colour=colour,  # type: ignore[arg-type]
        intensity=intensity,
        selected=position,
        on_pick=lambda found: pick(picked, found, k, limit),
    )
    if position is None:
        st.caption("Click a token, or use the arrow keys and Enter; n and p go to the next and the previous pivot.")
        return
    job = dashboard.jobs().find(live_jobs.replay_key(picked.place, position, k, limit))
    if job is not None and not job.over:
        st.fragment(replaying, run_every=0.5)(picked, position, job.id)
    else:
        stored(picked, position, k, limit, job)


def pick(picked: Picked, position: int, k: int, limit: int) -> None:
    """A click: show what is stored, or replay what is not."""
    address.write(position=position)
    if not runs_of(pivot_at_position(picked.rollout, position)) and picked.pivot(position) is not None:
        live_jobs.submit_replay(dashboard.jobs(), picked.place, position, k, limit)


def replaying(picked: Picked, position: int, number: int) -> None:
    """The passes as they arrive."""
    job = dashboard.jobs().job(number)
    if job is None or job.over:
        st.rerun()
        return
    watch_replay(picked, position, job)


def watch_replay(picked: Picked, position: int, job: Job) -> None:
    """One look at a running replay."""
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.caption(f"{job.phase or job.state} · {job.tokens} tokens · {job.seconds:.0f} s")
    right.button("Cancel", key=f"cancel-{job.id}", on_click=dashboard.jobs().cancel, args=(job.id,))
    pivot = picked.pivot(position)
    if pivot is None:
        return
    texts = dict(picked.texts)
    for _, more in job.passes.values():
        texts.update(more)
    measured = {name: one for name, (one, _) in job.passes.items()}
    panel(
        pivot,
        measured,
        ["exact", "replica", "refeed"],
        texts,
        key=f"live-{job.id}",
        running=job.phase,
        fraction=job.fraction,
    )


def stored(picked: Picked, position: int, k: int, limit: int, job: Job | None) -> None:
    """What the store holds of a token, and the button that replays it."""
    if job is not None and job.state == "failed":
        st.error(dashboard.sentence(job.error or "the replay failed"))
    fault = picked.fault(position)
    if fault is not None:
        st.info(dashboard.sentence(fault))
        return
    pivot = picked.pivot(position)
    runs = runs_of(pivot_at_position(picked.rollout, position))
    again = f"Replay {'again ' if runs else ''}three ways (k = {k}, {limit} tokens)"
    place: Place = picked.place
    if st.button(again, key=f"replay-{position}", icon=":material/replay:"):
        live_jobs.submit_replay(dashboard.jobs(), place, position, k, limit)
        st.rerun(scope="fragment")
    if pivot is None:
        return
    if not runs:
        heading(pivot, picked.texts)
        return
    chosen = runs[0]
    if len(runs) > 1:
        titles = [run.title for run in runs]
        title = st.selectbox("Run", titles, key=f"run-{place.handle}-{position}")
        chosen = runs[titles.index(title)] if title in titles else runs[0]
    panel(
        pivot,
        chosen.by_pass,
        [one.pass_ for one in chosen.measurements],
        picked.texts,
        key=f"stored-{position}-{chosen.run}",
        batch_invariant=picked.batch_invariant,
    )


main()
