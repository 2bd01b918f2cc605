"""One campaign, or a pool of one setting: every number beside its floor."""

import json
from functools import partial

import streamlit as st

from backend import campaign_view as view
from backend.dashboard import sentence, sentences, store
from backend.drawing import download_csv, file_name, plain, show_checks, show_panel, show_table
from backend.errors import UserError
from backend.report_tables import (
    checks_table,
    flips_table,
    method_table,
    probe_table,
    problem_table,
    readings_table,
    selection_table,
    statistics_table,
)
from backend.wording import cautions, headline, setting

with sentences():
    held = store()
    campaigns = view.choices(held)
if not campaigns:
    st.title("Campaign")
    st.info("The store holds no campaign yet.", title="Nothing to show", icon=":material/inbox:")
    st.page_link("pages/import_export.py", label="Import files", icon=":material/upload_file:")
    st.stop()


def follow_choice() -> None:
    """The address follows the choosers."""
    st.query_params["campaign"] = [st.session_state.campaign_first]


def follow_pool() -> None:
    st.query_params["campaign"] = [st.session_state.campaign_first, *st.session_state.campaign_pool]


# The address says what is shown; without one, what this reader saw last.
asked = (
    view.asked(st.query_params.get_all("campaign"))
    or st.session_state.get("campaigns_shown")
    or [next(iter(campaigns))]
)
try:
    ids = view.resolve(held, asked)
except UserError as error:
    st.title("Campaign")
    st.error(sentence(str(error)), title="No such campaign", icon=":material/error:")
    st.page_link("pages/overview.py", label="All campaigns", icon=":material/leaderboard:")
    st.session_state.pop("campaigns_shown", None)
    st.stop()
with sentences():
    partners = view.partners(held, ids)
st.session_state.campaigns_shown = ids
st.session_state.campaign_first = ids[0]
st.session_state.campaign_pool = ids[1:]

name = " + ".join(campaigns[campaign] for campaign in ids)
st.title(plain(name))
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.selectbox(
        "Campaign", campaigns, format_func=campaigns.__getitem__, key="campaign_first", on_change=follow_choice
    )
    st.multiselect(
        "Pool with",
        [*ids[1:], *partners],
        format_func=lambda campaign: campaigns[campaign],
        key="campaign_pool",
        on_change=follow_pool,
        placeholder="Campaigns of the same setting" if partners else "No other campaign has this setting",
        disabled=not partners and len(ids) == 1,
        help="Only campaigns of equal model, k, passes, sampling, pivot filter and engine facts can be pooled. "
        "Pivots of different campaigns are never merged; a problem they share is one cluster.",
    )
    st.text_input(
        "Further thresholds",
        key="campaign_thresholds",
        placeholder="0.3, 0.6",
        help="On |Â|, beside those that k allows",
    )

with sentences(), st.spinner("Computing the report", show_time=True):
    document = view.document(held, ids, st.session_state.campaign_thresholds)
    panels = view.panels(held, ids, st.session_state.campaign_thresholds)

with st.container(horizontal=True):
    for label, icon, colour in view.badges(document):
        st.badge(label, icon=icon, color=colour)
st.caption(plain(setting(document)))
st.markdown(f"#### {plain(headline(document))}")
if not document["pivots"]:
    st.page_link(
        "pages/transcript.py",
        label="Open its transcripts",
        icon=":material/notes:",
        query_params={"campaign": ids[0]},
    )
    show_table(method_table(document), name, height=560)
    st.stop()
with st.grid(5, min_column_width=150):
    for label, value, interval, what in view.figures_of_merit(document):
        st.metric(
            label, value, help=what, border=True, height="stretch", delta=interval, delta_color="off", delta_arrow="off"
        )
for caution in cautions(document):
    st.warning(plain(caution), icon=":material/warning:")

figures, problems, checks, method = st.tabs(
    ["Figures", "Problems", "Checks", "Method and downloads"], key="campaign_tab", on_change="rerun"
)
if figures.open:
    with figures:
        show_panel(panels["flips"])
        show_table(flips_table(document), name)
        show_table(statistics_table(document), name)
        show_panel(panels["selection"])
        show_table(selection_table(document), name)
        show_panel(panels["difference"])
        show_panel(panels["probe"])
        show_table(probe_table(document), name)
if problems.open:
    with problems:
        show_panel(panels["problems"])
        show_table(problem_table(document), name, height=560)
if checks.open:
    with checks:
        st.markdown("The method rests on these. What could not be looked at is unknown, which is not a pass.")
        show_checks(document)
        download_csv(checks_table(document), name)
        st.subheader("Instrument readings")
        show_table(readings_table(document), name)
if method.open:
    with method:
        show_table(method_table(document), name, height=560)
        st.subheader("Downloads")
        with st.container(horizontal=True):
            st.download_button(
                "Report (JSON)",
                partial(json.dumps, document, ensure_ascii=False, indent=1),
                f"{file_name(name)}-report.json",
                "application/json",
                icon=":material/data_object:",
                on_click="ignore",
                key="download_json",
            )
            st.download_button(
                "Report (HTML)",
                partial(view.html_page, held, document),
                f"{file_name(name)}-report.html",
                "text/html",
                icon=":material/article:",
                on_click="ignore",
                key="download_html",
            )
            for campaign in ids:
                st.download_button(
                    f"Receipt of {plain(campaigns[campaign])}",
                    partial(view.receipt, held, campaign),
                    f"{file_name(campaigns[campaign])}-receipt.json",
                    "application/json",
                    icon=":material/receipt_long:",
                    on_click="ignore",
                    key=f"download_receipt_{campaign}",
                    disabled=not view.has_receipt(document),
                    help="The study's format, which imports again",
                )
