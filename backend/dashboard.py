"""What every page shares: the store, the jobs, and how a sentence reaches the reader. Imports no torch."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from backend.errors import PivotscopeError
from backend.jobs import Jobs
from backend.opening import Loading, open_for_pages
from backend.store import Store

_MARKS = frozenset("\\`*_{}[]<>#$~:|")

ROOT = Path(__file__).resolve().parents[1]


def store_path() -> Path:
    """The store's file: `PIVOTSCOPE_STORE`, or `data/pivotscope.duckdb`."""
    return Path(os.environ.get("PIVOTSCOPE_STORE", ROOT / "data" / "pivotscope.duckdb"))


@st.cache_resource(show_spinner="Opening the store")
def _opened(path: str) -> tuple[Jobs, Loading]:
    store, loading = open_for_pages(Path(path))
    jobs = Jobs(store)
    atexit.register(jobs.close)
    return jobs, loading


def jobs() -> Jobs:
    """The one owner of store and engine in this process. Raises `UserError` when the store cannot be opened."""
    _enter_by_app()
    return _opened(str(store_path()))[0]


def loading_note() -> None:
    """Say in the sidebar which of the campaigns that ship are still coming in, and draw the page again with them."""
    try:
        _enter_by_app()
        _, loading = _opened(str(store_path()))
    except PivotscopeError:
        return  # the page says what is wrong with the store
    with st.sidebar:
        for error in loading.errors:
            st.warning(sentence(error), icon=":material/warning:")
        if not loading.over:
            _progress(loading)


@st.fragment(run_every=0.5)
def _progress(loading: Loading) -> None:
    if loading.over:
        st.rerun()
    st.progress(loading.done / loading.total, f"Loading bundled campaigns: {loading.done} of {loading.total}")


def _enter_by_app() -> None:
    """Run the page again through app.py if it was not.

    Until app.py has run once in a process, Streamlit takes the folder `pages` for its older kind of application, and
    gives a deep link's first visitor the bare page.
    """
    if PagesManager.uses_pages_directory and "entered" not in st.session_state:
        PagesManager.uses_pages_directory = False
        st.session_state["entered"] = True
        st.rerun()


def store() -> Store:
    """The open store."""
    return jobs().store


@contextmanager
def sentences() -> Iterator[None]:
    """Show a failure that a reader can act on as its sentence, and end the page there."""
    try:
        yield
    except PivotscopeError as error:
        st.error(sentence(str(error)), icon=":material/error:")
        st.stop()


def sentence(text: str) -> str:
    """A message as a sentence: capital first, a full stop last, no markdown in it."""
    text = text.strip()
    text = escaped(text[:1].upper() + text[1:])
    return text if text.endswith((".", "?", "!")) else text + "."


def escaped(text: str) -> str:
    """Any text as markdown that shows it as it is."""
    return "".join("\\" + mark if mark in _MARKS else mark for mark in text)
