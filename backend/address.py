"""What a reader is looking at, kept twice: the session carries it from page to page, the address keeps and shares it.

The sidebar's links drop query parameters and a reload drops the session, so a page starts by reading its keys from the
address, else from the session, and writes both.
"""

from __future__ import annotations

import streamlit as st

_PREFIX = "address."


def read(key: str) -> str | None:
    """The value of a key: the address's, else the session's."""
    value = st.query_params.get(key) or st.session_state.get(_PREFIX + key)
    return str(value) if value is not None else None


def read_int(key: str) -> int | None:
    """A whole number ≥ 0; None for anything else, since an address can be typed."""
    value = read(key)
    return int(value) if value is not None and value.isascii() and value.isdecimal() and len(value) < 10 else None


def write(**values: str | int | None) -> None:
    """Set keys in both places; None removes one."""
    for key, value in values.items():
        if value is None:
            st.session_state.pop(_PREFIX + key, None)
            st.query_params.pop(key, None)
        else:
            st.session_state[_PREFIX + key] = str(value)
            if st.query_params.get(key) != str(value):
                st.query_params[key] = str(value)
