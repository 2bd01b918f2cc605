"""Pivotscope: `streamlit run app.py`. Page configuration and navigation, nothing else."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from backend.dashboard import loading_note

PAGES = {
    "Inspect": [("transcript", "Transcript", "notes"), ("compare", "Compare", "compare_arrows")],
    "Measure": [
        ("overview", "Overview", "leaderboard"),
        ("campaigns", "Campaigns", "science"),
        ("campaign", "Campaign", "monitoring"),
    ],
    "Library": [("models", "Models", "deployed_code"), ("import_export", "Import and export", "swap_vert")],
}

here = Path(__file__).parent

st.set_page_config(
    page_title="Pivotscope",
    page_icon=str(here / "backend" / "assets" / "icon.png"),  # a named icon would be fetched from elsewhere
    layout="wide",
    menu_items={"About": "Pivots and credit in language-model rollouts, with the noise floor beside every number."},
)

page = st.navigation(
    {
        section: [
            st.Page(f"pages/{name}.py", title=title, icon=f":material/{icon}:", default=name == "transcript")
            for name, title, icon in pages
        ]
        for section, pages in PAGES.items()
    }
)
loading_note()
page.run()
