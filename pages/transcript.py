"""Transcript: a rollout's tokens coloured by credit; click one and watch it being replayed three ways."""

from __future__ import annotations

import streamlit as st

from backend import address, dashboard, live_jobs, replay_panel
from backend.picked import Picked
from backend.rollout_picker import pick_rollout, sampling_form
from backend.transcript import COLOURS, Colour, token_transcript


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
    if picked.foreign:
        return
    job = dashboard.jobs().find(live_jobs.measure_key(picked.place))
    if job is not None and not job.over:
        st.fragment(watch, run_every=0.5)(job.id)
        return
    if job is not None and job.error:
        st.warning(dashboard.sentence(job.error))
    if not picked.unmeasured:
        st.caption(f"All {len(picked.filter)} pivots of the filter are measured in this rollout.")
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
    right.button("Cancel", key=f"cancel-{number}", on_click=dashboard.jobs().cancel, args=(number,), width="stretch")


def workbench(picked: Picked) -> None:
    """The transcript, and the panel of the token that is picked."""
    left, middle, right = st.columns([3, 2, 2], vertical_alignment="bottom")
    colour = left.segmented_control("Colour by", COLOURS, default="credit", required=True, key="colour")
    intensity = middle.slider("Intensity", 0.2, 3.0, 1.0, 0.1, key="intensity")
    with right:
        k, limit = replay_panel.replay_settings()
    st.fragment(reading)(picked, colour or "credit", intensity, k, limit)


def reading(picked: Picked, colour: Colour, intensity: float, k: int, limit: int) -> None:
    """A fragment: a click redraws this and nothing else."""
    position = address.read_int("position")

    def pick(found: int) -> None:
        address.write(position=found)
        replay_panel.clicked(picked, found, k, limit)

    token_transcript(
        picked.view,
        key=f"tokens-{picked.place.handle}",
        colour=colour,
        intensity=intensity,
        selected=position,
        on_pick=pick,
    )
    if position is None:
        st.caption("Click a token, or use the arrow keys and Enter; n and p go to the next and the previous pivot.")
        return
    replay_panel.token(picked, position, k, limit)


main()
