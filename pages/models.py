"""Models: what is on this disk, where it came from, and which one the engine process holds."""

from __future__ import annotations

import streamlit as st

from backend import library, live_jobs
from backend.dashboard import jobs, sentence, sentences
from backend.drawing import plain
from backend.jobs import Job
from backend.library import Entry, short, size

st.title("Models")
with sentences():
    owner = jobs()


def unload() -> None:
    """Free the loaded model's memory."""
    owner.unload()


def fetch(name: str) -> None:
    """Bring a model to this disk."""
    live_jobs.submit_fetch(owner, name)


@st.fragment(run_every=1.0)
def engine() -> None:
    """The model in memory."""
    held = library.held(owner)
    at_work = [job for job in owner.all() if job.state == "running"]
    with st.container(border=True):
        if held is None:
            st.markdown(":material/memory: **No model is loaded.** The first replay loads the one it needs.")
            return
        left, right = st.columns([5, 1], vertical_alignment="center")
        left.markdown(f":material/memory: **{plain(held.name)}** is loaded")
        facts = [held.engine, held.dtype, held.device, f"process {held.pid}"]
        memory = "memory unknown" if held.memory is None else f"{size(held.memory)} of memory"
        left.caption(plain(" · ".join([memory, *(fact for fact in facts if fact)])))
        right.button(
            "Unload", icon=":material/eject:", key="unload", on_click=unload, disabled=bool(at_work), width="stretch",
            help="Ends the engine process and frees its memory. Loading another model does the same by itself.",
        )  # fmt: skip
        for job in at_work:
            st.caption(f":material/hourglass_top: At work: {plain(job.title)}, {plain(job.phase)}")


@st.fragment(run_every=0.5)
def watch(number: int) -> None:
    """A model on its way; the page is drawn anew once it is there."""
    job = owner.job(number)
    if job is None or job.over:
        st.rerun()
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(job.fraction or 0.0, text=f"{plain(job.phase or job.state)} · {job.seconds:.0f} s")
    right.button("Cancel", key=f"cancel_{number}", on_click=owner.cancel, args=(number,), width="stretch")


def fetching(entry: Entry) -> None:
    """The button that brings a model to this disk, or how far it has come."""
    name = entry.model.name
    job = owner.find(live_jobs.fetch_key(name))
    if job is not None and not job.over:
        watch(job.id)
        return
    if job is not None and job.error:
        st.error(sentence(job.error))
    st.button(
        "Fetch", icon=":material/download:", type="primary", key=f"fetch_{name}",
        on_click=fetch,
        args=(name,),
        help="Downloads the weights once, checks their hash and keeps them in the library.",
    )  # fmt: skip


def card(entry: Entry, loaded: str | None) -> None:
    """One model: its facts, its hash, its chat template."""
    model = entry.model
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"##### {plain(model.name)}")
            if entry.fault:
                st.badge("cannot be used", icon=":material/error:", color="red")
            elif entry.on_disk:
                st.badge("on this disk", icon=":material/check_circle:", color="green")
            else:
                st.badge("can be fetched", icon=":material/cloud_download:", color="gray")
            if model.path is not None and model.path == loaded:
                st.badge("loaded", icon=":material/memory:", color="blue")
        if entry.fault:
            st.error(sentence(entry.fault))
            return
        st.caption(plain(model.source))
        if not entry.on_disk:
            fetching(entry)
            return
        with st.grid(4, min_column_width=140):
            st.metric("Architecture", (model.architecture or "unknown").removesuffix("ForCausalLM"))
            st.metric("Parameters", "unknown" if model.parameters is None else short(model.parameters))
            st.metric("Weights", f"{model.dtype}, {size(entry.bytes or 0)}")
            st.metric("Chat template", "yes" if entry.template else "none")
        with st.expander("Details", icon=":material/info:"):
            rows = [("sha256 of the weights", model.sha256), ("folder", model.path), *entry.facts.items()]
            st.table([{"fact": fact, "value": plain(str(value))} for fact, value in rows], hide_index=True)
            if entry.template:
                st.markdown("**Chat template**")
                st.code(entry.template, language="jinja2", wrap_lines=True)
            else:
                st.markdown("A base model: without a chat template, a question becomes a plain prompt.")


def added(job: Job | None) -> None:
    """What became of the last model that was added."""
    if job is not None and job.state in {"failed", "cancelled"}:
        st.error(sentence(job.error or "the model could not be added"))
    elif job is not None and job.state == "done":
        st.success(f"Added as {plain(str(job.result))}.", icon=":material/check_circle:")


def add() -> None:
    """Put what was typed into the library."""
    if typed := st.session_state.add_what.strip():
        st.session_state.added = library.submit_add(owner, typed)
        st.session_state.add_what = ""


engine()
with st.container(border=True):
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input(
            "Add a model", key="add_what", placeholder="/path/to/checkpoint or OWNER/NAME of the hub", max_chars=500,
            help="A folder with config.json, tokenizer and .safetensors weights, linked and not copied; or a hub id. "
            "Dense decoder-only models: exact resume is not defined for sliding-window, hybrid and encoder models.",
        )  # fmt: skip
        st.button("Add", icon=":material/add:", key="add", on_click=add)
    last = owner.job(st.session_state.get("added", -1))
    if last is not None and not last.over:
        watch(last.id)
    else:
        added(last)

with sentences():
    held_now = library.held(owner)
    for one in library.entries():
        card(one, held_now.path if held_now else None)
