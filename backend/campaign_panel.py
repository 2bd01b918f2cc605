"""One campaign in the list: its line, its progress, what can be done with it, and its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from backend import campaign_jobs, campaign_list
from backend.campaign_list import Row
from backend.dashboard import sentence
from backend.drawing import file_name, plain, show_table
from backend.errors import PivotscopeError
from backend.jobs import Job, Jobs
from backend.runs import RunFolder

_SAID = "campaigns.said"
_SAID_FOR = 20.0
"""Seconds for which a success is shown."""


def attempt(done: str, action: Callable[..., object], *args: Any) -> None:
    """Do what a button asks for, and keep the sentence that says what became of it for the drawings that follow."""
    try:
        action(*args)
    except PivotscopeError as error:
        st.session_state[_SAID] = False, sentence(str(error)), time.monotonic()
    else:
        st.session_state[_SAID] = True, sentence(done), time.monotonic()


def said() -> None:
    """What became of the last button: success for a while, on a line that is always there, failure until the next."""
    good, words, when = st.session_state.get(_SAID, (True, "", 0.0))
    if not good:
        st.error(words, icon=":material/error:")
    elif time.monotonic() - when < _SAID_FOR:
        st.caption(f":green[:material/check: {plain(words)}]")
    else:
        st.caption("&nbsp;")


def draw(jobs: Jobs, row: Row) -> None:
    """A campaign's box."""
    with st.container(border=True, key=f"campaign-{row.campaign}"):
        # Columns, not one row: there a button would move away under the pointer whenever its neighbours change.
        title, action, removal = st.columns([6, 1, 1], vertical_alignment="center", gap="small")
        with title.container(horizontal=True, vertical_alignment="center"):
            _name(row)
            standing = row.standing
            st.badge(standing.word, icon=standing.icon, color=standing.colour)
        with action:
            _action(jobs, row)
        with removal:
            _removal(jobs, row)
        st.caption(f"{plain(row.facts)} · {row.counts}")
        if row.active:
            fraction, line = campaign_list.at_work(row)
            st.progress(min(max(fraction or 0.0, 0.0), 1.0), text=plain(line))
        if row.note:
            st.caption(f":material/info: {sentence(row.note)}")
        details = st.expander(
            "Log, problems and settings" if row.progress else "Problems and settings",
            type="compact",
            key=f"details-{row.campaign}",
            on_change="rerun",
        )
        if details.open:
            with details:
                _details(jobs, row)


def _name(row: Row) -> None:
    if row.stored:
        st.page_link("pages/campaign.py", label=f"**{plain(row.name)}**", query_params={"campaign": row.campaign})
    else:
        st.markdown(f"**{plain(row.name)}**", width="content")


def _action(jobs: Jobs, row: Row) -> None:
    """Cancel or resume, where there is something to do."""
    if row.active:
        words = f"Campaign {row.name} is asked to stop; what is finished stays"
        _button("Cancel", ":material/stop:", words, campaign_jobs.cancel, jobs, row)
    elif row.resumable:
        words = f"Campaign {row.name} goes on where it stood"
        _button("Resume", ":material/play_arrow:", words, campaign_jobs.resume, jobs, row)


def _button(label: str, icon: str, done: str, action: Callable[[Jobs, str], object], jobs: Jobs, row: Row) -> None:
    st.button(
        label,
        key=f"{label.lower()}-{row.campaign}",
        icon=icon,
        width="stretch",
        on_click=attempt,
        args=(done, action, jobs, row.campaign),
    )


def _removal(jobs: Jobs, row: Row) -> None:
    with st.popover(
        "Remove", key=f"remove-{row.campaign}", icon=":material/delete:", disabled=row.active, width="stretch"
    ):
        st.markdown(f"**{plain(row.name)}** with everything it holds ({row.counts}) goes for good.")
        st.button(
            "Remove for good",
            key=f"remove-now-{row.campaign}",
            type="primary",
            on_click=attempt,
            args=(f"Campaign {row.name} is removed", campaign_jobs.remove, jobs, row.campaign),
        )


def _details(jobs: Jobs, row: Row) -> None:
    """A run's log, its problems, the shards that were set aside, and the settings."""
    folder = RunFolder.of(jobs.store.path, row.campaign)
    views = ["Problems", "Settings"]
    views += [f"Set aside ({len(aside)})"] if (aside := folder.quarantined()) else []
    entries = folder.log_entries()
    views = (["Log"] if entries else []) + views
    view = st.segmented_control(
        "What", views, default=views[0], required=True, key=f"view-{row.campaign}", label_visibility="collapsed"
    )
    name = file_name(row.name)
    if view == "Log":
        show_table(campaign_list.log_table(entries, row.campaign), name, config=_wide("message", "Message"))
    elif view == "Problems":
        if row.stored:
            show_table(campaign_list.problem_table(jobs.store, row.campaign), name, config=_wide("error", "Error"))
        else:
            st.caption("The store has not taken anything of this run in yet.")
    elif view == "Settings":
        _settings(jobs, row)
    else:
        st.caption("These files are torn or belong elsewhere. Resuming the run computes their problems again.")
        lines = [{"File": plain(shard.name), "Reason": plain(shard.reason)} for shard in aside]
        st.table(lines, hide_index=True, border="horizontal", alt="Shards that were set aside, and why")


def _wide(key: str, label: str) -> dict[str, Any]:
    """A column for sentences."""
    return {key: st.column_config.TextColumn(label, width="large")}


def _settings(jobs: Jobs, row: Row) -> None:
    text = campaign_list.campaign_file(jobs.store, row.campaign)
    if text is None:
        st.caption("The settings are not on record as a campaign file; its page shows what is known.")
        return
    st.code(text, language="toml", wrap_lines=True)
    st.download_button(
        "Download file",
        data=text,
        file_name=f"{file_name(row.name)}.toml",
        mime="application/toml",
        key=f"toml-{row.campaign}",
        icon=":material/download:",
        on_click="ignore",
    )


def queue(jobs: Jobs) -> None:
    """The engine's work: what it does, what waits, and what the latest came to."""
    engine = jobs.engine()
    held = "No model is loaded."
    if engine is not None and engine.alive():
        held = f"Process {engine.pid} holds {plain(engine.spec.name)} ({engine.spec.engine}, {engine.spec.dtype})."
    st.caption(f"{held} Models loaded since the dashboard started: {jobs.loads}.")
    everything = jobs.all()
    for job in [*filter(lambda job: not job.over, reversed(everything)), *[job for job in everything if job.over][:5]]:
        with st.container(horizontal=True, vertical_alignment="center", key=f"job-{job.id}"):
            st.markdown(f"{_ICONS[job.state]} {plain(job.title)}", width="content")
            st.caption(_line(job), width="stretch")
            if not job.over:
                st.button("Cancel", key=f"cancel-job-{job.id}", on_click=jobs.cancel, args=(job.id,), type="tertiary")


_ICONS = {
    "queued": ":gray[:material/schedule:]",
    "running": ":blue[:material/play_circle:]",
    "done": ":green[:material/check_circle:]",
    "failed": ":red[:material/error:]",
    "cancelled": ":gray[:material/cancel:]",
}


def _line(job: Job) -> str:
    if job.error is not None:
        return sentence(job.error)
    told = plain(job.phase) if job.phase and not job.over else job.state
    if job.over and isinstance(job.result, str) and job.key.startswith("campaign|"):
        told = sentence(job.result)
    return told if job.state == "queued" else f"{told} · {job.seconds:.0f} s"
