"""Compare: two to four campaigns side by side, their numbers, their curves, and their transcripts token by token."""

from __future__ import annotations

import streamlit as st

from backend import address, compare_drawing, compare_metrics, sides
from backend import compare_view as view
from backend.dashboard import sentences, store
from backend.drawing import plain
from backend.report import report
from backend.sides import FEWEST, MOST

st.title("Compare")
with sentences():
    held = store()
    campaigns = {row["campaign"]: row for row in held.campaigns() if row["pivots"] or row["rollouts"]}
if len(campaigns) < FEWEST:
    st.info("A comparison needs two campaigns.", title="Nothing to compare yet", icon=":material/inbox:")
    st.page_link("pages/import_export.py", label="Import files", icon=":material/upload_file:")
    st.page_link("pages/campaigns.py", label="Start a campaign", icon=":material/play_circle:")
    st.stop()


def choose() -> None:
    """The address follows the choice; what was looked at in other campaigns is let go."""
    address.write(campaigns=",".join(st.session_state.compare_campaigns) or "none", rollouts=None, picked=None)


asked = [name for name in (address.read("campaigns") or "").split(",") if name]
with sentences():
    if asked:
        ids = [] if asked == ["none"] else list(dict.fromkeys(held.find_campaign(name) for name in asked))
    else:
        ids = sides.proposed(held, list(campaigns))
st.session_state.compare_campaigns = ids = [campaign for campaign in ids if campaign in campaigns][:MOST]
st.multiselect(
    "Campaigns",
    campaigns,
    format_func=lambda campaign: campaigns[campaign]["name"],
    key="compare_campaigns",
    on_change=choose,
    max_selections=MOST,
    placeholder="Two to four campaigns",
    help="The first one is what the others are compared with.",
)
if len(ids) < FEWEST:
    st.info(f"Choose {FEWEST} to {MOST} campaigns.", icon=":material/compare_arrows:")
    st.stop()
address.write(campaigns=",".join(ids))
with sentences(), st.spinner("Comparing", show_time=True):
    comparison = sides.compare(held, ids)
    documents = [report(held, [campaign]) for campaign in ids]
names = compare_metrics.columns_of(comparison)

against = 1
if len(ids) > FEWEST:
    against = st.segmented_control(
        f"Against {plain(names[0])}",
        range(1, len(ids)),
        default=1,
        required=True,
        format_func=lambda place: plain(names[place]),
        key="against",
        bind="query-params",
    )
with sentences(), st.spinner("Comparing", show_time=True):
    found = sides.differences_of(held, comparison, 0, against)
st.markdown(f"#### {plain(view.headline(names[0], names[against], found))}")
st.caption(plain(view.shared_sentence(comparison, 0, against)))

metrics, curves, transcripts, critical = st.tabs(
    ["Metrics", "Curves", "Transcripts", "Critical tokens"], key="view", bind="query-params"
)
if metrics.open:
    with metrics, sentences():
        compare_drawing.metrics(held, comparison, names, documents, against)
if curves.open:
    with curves, sentences():
        compare_drawing.curves(held, comparison, names, documents)
if transcripts.open:
    with transcripts, sentences():
        compare_drawing.transcripts(held, comparison, names)
if critical.open:
    with critical, sentences():
        compare_drawing.critical(held, comparison, names, against)
