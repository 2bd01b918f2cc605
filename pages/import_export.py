"""Import and export: see what a file is before it is stored; take a campaign away as a file."""

from __future__ import annotations

import streamlit as st

from backend import dashboard
from backend.campaign_list import counted
from backend.drawing import plain
from backend.errors import PivotscopeError, UserError
from backend.exchange import FORMATS, MAX_FILES, Inspected, Upload, exported, inspect, take_in
from backend.pooling import refuse_unpoolable

KINDS = {
    "receipt": "receipt of a campaign",
    "rollout": "recorded rollout",
    "export": "Pivotscope export",
    "unusable": "cannot be used",
}
MIME = {"parquet": "application/vnd.apache.parquet", "csv": "application/zip"}
MIME |= {"receipt": "application/json", "html": "text/html"}

st.title("Import and export")
with dashboard.sentences():
    store = dashboard.store()


def uploads() -> list[Upload]:
    """The dropped files."""
    return [Upload(file.name, file.getvalue()) for file in st.session_state.get("import-files") or []]


def keep() -> None:
    """Store every file that is usable and new."""
    found: list[Inspected] = st.session_state["import.found"]
    wanted = [upload for upload, file in zip(uploads(), found, strict=True) if file.error is None and not file.known]
    try:
        st.session_state["import.kept"] = take_in(store, wanted)
    except PivotscopeError as error:
        st.session_state["import.failed"] = dashboard.sentence(str(error))


def show(file: Inspected) -> None:
    """What one file is, what is wrong with it, and what would be stored."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(file.file)}**", width="content")
            colour, icon = ("red", "error") if file.error else ("green", "check_circle")
            st.badge(KINDS[file.kind], color=colour, icon=f":material/{icon}:")  # type: ignore[arg-type]
            if file.known:
                st.badge("already in the store", color="gray", icon=":material/inventory_2:")
                st.space("stretch")
                st.page_link("pages/campaign.py", label="Open", query_params={"campaign": file.campaign or ""})
        if file.error is not None:
            st.markdown(dashboard.sentence(file.error.removeprefix(f"{file.file}: ")))
            return
        parts = {"problem": file.problems, "rollout": file.rollouts, "pivot": file.pivots}
        held = " · ".join(counted(number, noun) for noun, number in parts.items())
        verb = "In the store as" if file.known else "Will be stored as"
        st.markdown(f"{verb} campaign **{plain(file.name or '')}** (`{file.campaign}`): {plain(file.facts)} · {held}")
        for note in file.notes:
            st.caption(f":material/warning: {plain(note)}")


def kept() -> None:
    """What the last import brought, with links."""
    done = st.session_state.get("import.kept")
    if failed := st.session_state.pop("import.failed", None):
        st.error(failed, icon=":material/error:")
    if not done:
        return
    ids = [one["campaign"] for one in done if any(row["campaign"] == one["campaign"] for row in store.campaigns())]
    if not ids:
        return
    word = "file is" if len(ids) == 1 else "files are"
    st.success(f"{len(ids)} {word} in the store.", icon=":material/check_circle:")
    if len(ids) > 1:
        try:
            refuse_unpoolable(store, ids)
        except UserError:
            return  # they measured different things; each has its own page
        st.page_link(
            "pages/campaign.py",
            label=f"Open all {len(ids)} pooled",
            icon=":material/join_inner:",
            query_params={"campaign": ids},
        )


st.header("Import")
files = st.file_uploader(
    "Receipts and rollouts (JSON), or Pivotscope exports (Parquet)",
    type=["json", "parquet"],
    accept_multiple_files=True,
    key="import-files",
    help=f"At most {MAX_FILES} files of 50 MB. Nothing is stored before you say so; larger files: "
    "`python -m backend import PATH`.",
)
if files:
    with dashboard.sentences():
        dropped = [file.file_id for file in files], [row["campaign"] for row in store.campaigns()]
        if st.session_state.get("import.dropped") != dropped:
            with st.spinner("Looking into the files"):
                st.session_state["import.found"] = inspect(store, uploads())
            st.session_state["import.dropped"] = dropped
    found: list[Inspected] = st.session_state["import.found"]
    new = [file for file in found if file.error is None and not file.known]
    if new:
        st.button(
            f"Store {len(new)} {'file' if len(new) == 1 else 'files'}",
            key="import-store",
            type="primary",
            icon=":material/download_done:",
            on_click=keep,
        )
    kept()
    for file in found:
        show(file)
else:
    st.caption("Drop files above. You see what each is, what is wrong with it, and what would be stored.")

st.header("Export")
with dashboard.sentences():
    campaigns = {row["campaign"]: row["name"] for row in store.campaigns()}
if not campaigns:
    st.info("There is nothing to export yet.", icon=":material/inbox:")
    st.page_link("pages/campaigns.py", label="Start a campaign", icon=":material/science:")
    st.stop()
left, right = st.columns([2, 3])
campaign = left.selectbox("Campaign", list(campaigns), format_func=campaigns.__getitem__, key="export-campaign")
format_ = right.selectbox("Format", list(FORMATS), format_func=FORMATS.__getitem__, key="export-format")
with st.container(horizontal=True):
    if st.button("Prepare the file", key="export-prepare", icon=":material/inventory:"):
        with dashboard.sentences(), st.spinner("Writing the file", show_time=True):
            st.session_state["export.ready"] = (campaign, format_, *exported(store, campaign, format_))
    ready = st.session_state.get("export.ready")
    if ready is not None and ready[:2] == (campaign, format_):
        st.download_button(
            f"Download {ready[2]} ({max(len(ready[3]) // 1024, 1):,} kB)",
            data=ready[3],
            file_name=ready[2],
            mime=MIME[format_],
            key="export-download",
            type="primary",
            icon=":material/download:",
            on_click="ignore",
        )
