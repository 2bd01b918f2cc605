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
from backend.opening import open_store
from backend.store import Store

_MARKS = frozenset("\\`*_{}[]<>#$~:|")

ROOT = Path(__file__).resolve().parents[1]


def store_path() -> Path:
    """The store's file: `PIVOTSCOPE_STORE`, or `data/pivotscope.duckdb`."""
    return Path(os.environ.get("PIVOTSCOPE_STORE", ROOT / "data" / "pivotscope.duckdb"))


@st.cache_resource(show_spinner="Opening the store")
def _jobs(path: str) -> Jobs:
    jobs = Jobs(open_store(Path(path)))
    atexit.register(jobs.close)
    return jobs


def jobs() -> Jobs:
    """The one owner of store and engine in this process. Raises `UserError` when the store cannot be opened."""
    _enter_by_app()
    return _jobs(str(store_path()))


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
