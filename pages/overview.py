"""Overview: one row a configuration, refeed beside its floor."""

import streamlit as st

from backend.dashboard import sentences, store
from backend.drawing import column_config, download_csv, plain
from backend.errors import UserError
from backend.overview_table import overview
from backend.pooling import refuse_unpoolable
from backend.tables import UNDEFINED

st.title("Overview")
st.markdown(
    "One row a campaign, the largest excess first. A flip rate says nothing without its **floor**: what an identical "
    "measurement, made again, disagrees with. **Excess** is what re-feeding adds to it."
)

with sentences(), st.spinner("Computing reports", show_time=True):
    held = store()
    table = overview(held)

if not table.rows:
    st.info(
        "No campaign has pivots yet. Import a receipt or start a campaign, and it appears here.",
        title="Nothing to compare yet",
        icon=":material/inbox:",
    )
    st.page_link("pages/import_export.py", label="Import files", icon=":material/upload_file:")
    st.page_link("pages/campaigns.py", label="Start a campaign", icon=":material/play_circle:")
    st.stop()

picked = st.dataframe(
    table.frame(),
    width="stretch",
    height="content",
    hide_index=True,
    # A column of unknowns is left to the CSV.
    column_order=[key for key in table.frame().dropna(axis="columns", how="all") if key != "name"],
    column_config={
        **column_config(table),
        "link": st.column_config.LinkColumn(
            "campaign", display_text="#(.*)$", pinned=True, alignment="left", help="Opens the campaign in a new tab"
        ),
    },
    placeholder=UNDEFINED,
    on_select="rerun",
    selection_mode="multi-row",
    key="table_overview",
    alt="Campaigns with flip rates, floors, excess and Jaccard indices, the largest excess first",
)
with st.container(horizontal=True, vertical_alignment="center"):
    chosen = [table.rows[row] for row in picked.selection.rows if row < len(table.rows)]
    if chosen:
        ids = [row["campaign"] for row in chosen]
        try:
            refuse_unpoolable(held, ids)
        except UserError as error:
            st.caption(f":material/block: {plain(str(error))}")
        else:
            label = "Open " + " + ".join(plain(row["name"]) for row in chosen)
            st.page_link(
                "pages/campaign.py", label=label, icon=":material/arrow_forward:", query_params={"campaign": ids}
            )
    else:
        st.caption(":material/check_box: Tick a row to open it here, or several of one setting to pool them.")
    st.space("stretch")
    download_csv(table, "pivotscope")

hidden = sum(not row["pivots"] for row in held.campaigns())
if hidden:
    st.caption(f"{hidden} {'campaign has' if hidden == 1 else 'campaigns have'} no pivots and no row here.")
with st.expander("How to read this table", icon=":material/help:"):
    st.markdown(
        "- **refeed** and **floor** are flips over the same eligible pivots (exact, replica or refeed has Â ≠ 0), "
        "so their difference is the excess.\n"
        "- **t** compares the problems' own excess rates with 0, each problem counting once. It is undefined (–) over "
        "fewer than two problems, or when all problems agree exactly, as in batch-invariant mode.\n"
        "- **Jaccard** is how far refeed selects the pivots that exact selects at |Â| ≥ 0.5; **ceiling** is the same "
        "for the identical measurement, one draw itself.\n"
        "- Do not rank configurations whose intervals overlap, nor compare a k with another: a larger k has a "
        "finer grid and more eligible pivots."
    )
