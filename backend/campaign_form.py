"""The form that starts a campaign: widgets and pasted text both end as the file that the command line takes."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from typing import Any

import streamlit as st

from backend import models
from backend.campaign_jobs import submit_campaign
from backend.dashboard import sentence
from backend.drawing import file_name
from backend.errors import PivotscopeError, UserError
from backend.jobs import Jobs
from backend.records import PASSES, STANDARD_PASSES
from backend.settings import CampaignSettings, make_settings, parse_settings, to_toml

MAX_FILE_MB = 1
"""Largest campaign file that is read."""

SMALL: dict[str, Any] = {
    "model": models.DEFAULT_MODEL,
    "engine": "transformers",
    "problems": {"set": "arithmetic", "first": 0, "count": 6},
    "rollouts": 4,
    "k": 4,
    "max_pivots_per_rollout": 2,
    "max_rollout_tokens": 96,
    "max_continuation_tokens": 96,
}
"""A campaign that a laptop finishes in minutes, without its name."""

_SETS = {"arithmetic": "Arithmetic (bundled)", "gsm8k": "GSM8K", "file": "A JSONL file", "hf": "A data set of the hub"}
_KEY = "campaign-form."


def small_campaign(taken: Collection[str]) -> CampaignSettings:
    """The small campaign under a name that is free."""
    return make_settings({"name": free_name("smollm2-arithmetic", taken), **SMALL}, "the small campaign")


def free_name(wanted: str, taken: Collection[str]) -> str:
    """`wanted`, or with the first number behind it under which no campaign goes yet."""
    if wanted not in taken:
        return wanted
    return next(name for number in range(2, len(taken) + 3) if (name := f"{wanted}-{number}") not in taken)


def engine_options(text: str) -> dict[str, Any]:
    """Options written as in a campaign file: `key = value` a line. Raises `UserError` for anything else."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"engine options: not valid TOML, {error}; write one `key = value` a line") from None


def draw(jobs: Jobs, taken: Collection[str]) -> None:
    """Both ways to a campaign file, the file itself, and the button that starts it. A fragment."""
    way = st.segmented_control(
        "How", ["Form", "Campaign file"], default="Form", required=True, key=_KEY + "way", label_visibility="collapsed"
    )
    left, right = st.columns([3, 2], gap="large")
    with left:
        try:
            settings = _from_file() if way == "Campaign file" else _from_widgets(taken)
        except UserError as error:
            st.error(sentence(str(error)), icon=":material/error:")
            settings = None
    with right:
        if settings is None:
            st.caption("The campaign file appears here once the settings make sense.")
        else:
            _file(jobs, settings)


def _file(jobs: Jobs, settings: CampaignSettings) -> None:
    text = to_toml(settings)
    # The file comes last: it is drawn in steps, and would move the buttons below it.
    with st.container(horizontal=True):
        st.button(
            "Start campaign",
            key=_KEY + "start",
            type="primary",
            icon=":material/play_arrow:",
            on_click=_start,
            args=(jobs, settings),
        )
        st.download_button(
            "Download file",
            data=text,
            file_name=f"{file_name(settings.name)}.toml",
            mime="application/toml",
            key=_KEY + "download",
            icon=":material/download:",
            on_click="ignore",
        )
    # Shown until the settings change: a page may be drawn again at any time, and would lose what one drawing says.
    of, good, words = st.session_state.get(_KEY + "said", (None, True, ""))
    if of == settings:
        (st.success if good else st.error)(words, icon=":material/check:" if good else ":material/error:")
    st.caption("The same file runs from a terminal: `python -m backend run FILE.toml`. Running it again resumes it.")
    st.code(text, language="toml", wrap_lines=True)


def _start(jobs: Jobs, settings: CampaignSettings) -> None:
    try:
        submit_campaign(jobs, settings)
    except PivotscopeError as error:
        said = False, sentence(str(error))
    else:
        said = True, sentence(f"Campaign {settings.name} was put in the queue; see below")
    st.session_state[_KEY + "said"] = settings, *said


def _from_file() -> CampaignSettings | None:
    upload = st.file_uploader(
        "Campaign file", type="toml", key=_KEY + "upload", max_upload_size=MAX_FILE_MB, help="Up to 1 MB"
    )
    pasted = st.text_area(
        "Or its text",
        key=_KEY + "text",
        height=260,
        max_chars=100_000,
        placeholder='name = "smol-stock"\nmodel = "smollm2-135m"\nengine = "transformers"',
    )
    if upload is not None:
        try:
            return parse_settings(upload.getvalue().decode("utf-8"), upload.name)
        except UnicodeDecodeError:
            raise UserError(f"{upload.name}: is not UTF-8 text; give a campaign file in TOML") from None
    return parse_settings(pasted, "the text") if pasted.strip() else None


def _from_widgets(taken: Collection[str]) -> CampaignSettings:
    name, model = st.columns(2)
    known = [one.name for one in models.list_models()]
    data: dict[str, Any] = {
        "name": name.text_input(
            "Name", free_name("smollm2-arithmetic", taken), key=_KEY + "name", help="Starting a name again resumes it"
        ),
        "model": model.selectbox(
            "Model",
            known,
            index=known.index(models.DEFAULT_MODEL) if models.DEFAULT_MODEL in known else 0,
            accept_new_options=True,
            key=_KEY + "model",
            help="A name of the model library, a folder with a checkpoint, or a hub id",
        ),
    }
    engine, dtype = st.columns(2)
    data["engine"] = engine.segmented_control(
        "Engine", ["transformers", "vllm"], default="transformers", required=True, key=_KEY + "engine"
    )
    data["dtype"] = dtype.segmented_control(
        "dtype", ["bfloat16", "float32"], default="bfloat16", required=True, key=_KEY + "dtype"
    )
    data["problems"] = _problems()
    rollouts, k, pivots = st.columns(3)
    data["rollouts"] = rollouts.number_input("Rollouts a problem", 1, 256, SMALL["rollouts"], key=_KEY + "rollouts")
    data["k"] = k.number_input("Continuations an arm (k)", 1, 256, SMALL["k"], key=_KEY + "k")
    data["max_pivots_per_rollout"] = pivots.number_input(
        "Pivots a rollout, at most", 1, 1000, SMALL["max_pivots_per_rollout"], key=_KEY + "pivots"
    )
    rollout_tokens, continuation_tokens = st.columns(2)
    data["max_rollout_tokens"] = rollout_tokens.number_input(
        "Tokens a rollout, at most", 1, 32768, SMALL["max_rollout_tokens"], key=_KEY + "rollout-tokens"
    )
    data["max_continuation_tokens"] = continuation_tokens.number_input(
        "Tokens a continuation, at most", 1, 32768, SMALL["max_continuation_tokens"], key=_KEY + "continuation-tokens"
    )
    with st.expander("Sampling, passes and engine settings", key=_KEY + "more", icon=":material/tune:"):
        data |= _further()
    return _settings(data)


def _settings(data: dict[str, Any]) -> CampaignSettings:
    """What the widgets say. All of them are drawn by now, so that a fault in one hides none."""
    problems = data["problems"]
    if problems.get("file") == "":
        raise UserError("problems: name the JSONL file")
    if problems.get("set") == "hf:":
        raise UserError("problems: name the data set of the hub, OWNER/NAME")
    return make_settings(data | {"engine_options": engine_options(data["engine_options"])}, "the form")


def _problems() -> dict[str, Any]:
    source, first, count = st.columns([2, 1, 1])
    chosen = source.selectbox("Problems", list(_SETS), format_func=_SETS.__getitem__, key=_KEY + "set")
    data: dict[str, Any] = {
        "first": first.number_input("First", 0, 10**7, 0, key=_KEY + "first", help="Index of the first, from 0"),
        "count": count.number_input("How many", 1, 10**6, SMALL["problems"]["count"], key=_KEY + "count"),
    }
    if chosen == "file":
        data["file"] = st.text_input(
            "File on this machine", key=_KEY + "file", placeholder="problems.jsonl", help="GSM8K's or MATH's fields"
        )
    elif chosen == "hf":
        data["set"] = "hf:" + st.text_input("Data set id", key=_KEY + "hub", placeholder="OWNER/NAME")
    else:
        data["set"] = chosen
    if st.toggle(
        "Difficulty screen: keep problems whose rollouts are neither all right nor all wrong", key=_KEY + "screen"
    ):
        data |= {
            "screen": True,
            "scan_limit": st.number_input(
                "Look at no more than", 1, 10**6, 10 * int(data["count"]), key=_KEY + "scan", help="Problems"
            ),
        }
    return data


def _further() -> dict[str, Any]:
    data: dict[str, Any] = {
        "passes": st.pills(
            "Passes", PASSES, selection_mode="multi", default=list(STANDARD_PASSES), key=_KEY + "passes"
        ),
    }
    temperature, top_p, seed = st.columns(3)
    data["temperature"] = temperature.number_input("Temperature", 0.0, 5.0, 0.7, 0.1, key=_KEY + "temperature")
    data["top_p"] = top_p.number_input("top-p", 0.01, 1.0, 0.95, 0.05, key=_KEY + "top-p")
    data["seed"] = seed.number_input("Seed", 0, 2**31 - 1, 0, key=_KEY + "seed")
    margin, slack = st.columns(2)
    data["margin_below"] = margin.number_input("Margin below (nats)", 0.01, 100.0, 1.0, 0.1, key=_KEY + "margin")
    data["boundary_slack"] = slack.number_input(
        "Boundary slack", -1, 15, -1, key=_KEY + "slack", help="−1: any position; 2: the study's filter"
    )
    data["batch_invariant"] = st.toggle("Batch-invariant mode (vLLM on a GPU)", key=_KEY + "invariant")
    data["engine_options"] = st.text_area(
        "Engine options", key=_KEY + "options", placeholder='attention_backend = "TRITON_ATTN"\nmax_num_seqs = 256'
    )
    python = st.text_input("Python of the engine process", key=_KEY + "python", placeholder="as the dashboard's")
    data["worker_python"] = python or None
    data["passes"] = [name for name in PASSES if name in (data["passes"] or [])]
    return data
