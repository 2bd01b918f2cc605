"""Pivotscope: `streamlit run app.py`. Page configuration and navigation, nothing else."""

from __future__ import annotations

import streamlit as st

st.set_page_config(
    page_title="Pivotscope",
    page_icon=":material/alt_route:",
    layout="wide",
    menu_items={"About": "Pivots and credit in language-model rollouts, with the noise floor beside every number."},
)

st.navigation(
    {
        "Inspect": [
            st.Page("pages/transcript.py", title="Transcript", icon=":material/notes:", default=True),
            st.Page("pages/compare.py", title="Compare", icon=":material/compare_arrows:"),
        ],
        "Measure": [
            st.Page("pages/overview.py", title="Overview", icon=":material/leaderboard:"),
            st.Page("pages/campaigns.py", title="Campaigns", icon=":material/science:"),
            st.Page("pages/campaign.py", title="Campaign", icon=":material/monitoring:"),
        ],
        "Library": [
            st.Page("pages/models.py", title="Models", icon=":material/deployed_code:"),
            st.Page("pages/import_export.py", title="Import and export", icon=":material/swap_vert:"),
        ],
    }
).run()
