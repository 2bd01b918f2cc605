"""Campaigns: browse, start, watch, cancel, resume, remove."""

from __future__ import annotations

import streamlit as st

from backend import campaign_form, campaign_list, campaign_panel, dashboard
from backend.campaign_jobs import submit_campaign

SHOWN = 25
"""Campaigns listed before somebody asks for all."""

LOOK_EVERY = 1.0
"""Seconds between two looks at the runs' files; only the list is drawn again."""

st.title("Campaigns")
st.markdown(
    "One configuration over many problems, every pivot replayed in each pass. A campaign may run here or in a "
    "terminal; cancelled or killed, it goes on where it stood."
)
with dashboard.sentences():
    jobs = dashboard.jobs()
    names = {row.name for row in campaign_list.rows(jobs)}


@st.fragment
def start() -> None:
    """The form draws itself again without the rest of the page."""
    campaign_form.draw(jobs, names)


@st.fragment(run_every=LOOK_EVERY)
def listing() -> None:
    """Everything that changes by itself."""
    campaign_panel.said()
    with dashboard.sentences():
        rows = campaign_list.rows(jobs)
    if not rows:
        nothing()
    everything = len(rows) <= SHOWN or st.toggle(f"Show all {len(rows)} campaigns", key="campaigns-all")
    for row in rows if everything else rows[:SHOWN]:
        with dashboard.sentences():
            campaign_panel.draw(jobs, row)
    if jobs.all():
        st.subheader("Engine")
        campaign_panel.queue(jobs)


def nothing() -> None:
    """An empty store says what to do."""
    st.info(
        "The small one takes minutes on a laptop: the packaged SmolLM2 (fetched if it is not here), 6 arithmetic "
        "problems, 4 rollouts each.",
        title="No campaign yet",
        icon=":material/science:",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Start a small campaign",
            key="campaigns-small",
            type="primary",
            icon=":material/play_arrow:",
            on_click=campaign_panel.attempt,
            args=("The small campaign is in the queue", submit_campaign, jobs, campaign_form.small_campaign(names)),
        )
        st.page_link("pages/import_export.py", label="Import files instead", icon=":material/upload_file:")


with st.expander("Start a campaign", key="campaigns-start", icon=":material/add_circle:", on_change="rerun") as form:
    if form.open:
        start()
listing()
