"""Which campaigns may be pooled: those of one setting, over whatever problems.

A pool concatenates pivots and merges none. So the campaigns must measure the same quantity: equal model, k, passes,
sampling, pivot filter and engine facts. What is unknown equals what is unknown, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from backend.errors import UserError
from backend.importers.receipts import PROBLEM_SETTING_NAMES, SETTING_NAMES
from backend.store import Store

SETTINGS = (
    "rollouts",
    "temperature",
    "top_p",
    "max_rollout_tokens",
    "max_continuation_tokens",
    "margin_below",
    "max_pivots_per_rollout",
    "boundary_slack",
)
"""Settings of sampling and of the pivot filter. The seed may differ: it draws from the same distribution."""

_ENGINE = ("engine", "dtype", "attention_backend", "batch_invariant")


def refuse_unpoolable(store: Store, campaigns: Sequence[str]) -> None:
    """Raise `UserError` with the first difference of two campaigns, ids, or for one that is there twice."""
    if len(campaigns) < 2:
        return
    names = {campaign: str(store.campaign(campaign)["name"]) for campaign in campaigns}
    for campaign in campaigns:
        if campaigns.count(campaign) > 1:
            raise UserError(f"campaign {names[campaign]} is named twice; a pool takes each campaign once")
    first, *others = campaigns
    for other in others:
        found = differences(store, first, other)
        if found:
            listed = ", ".join(
                f"{key} is {_shown(mine)} in {names[first]} and {_shown(theirs)} in {names[other]}"
                for key, mine, theirs in found[:4]
            )
            raise UserError(
                f"{names[first]} and {names[other]} cannot be pooled: {listed}; "
                "pool campaigns of equal model, k, passes, sampling, pivot filter and engine facts"
            )


def poolable(store: Store, campaigns: Sequence[str]) -> list[str]:
    """Ids of the campaigns that can join a pool of `campaigns`, those themselves left out."""
    held = set(campaigns)
    return [
        row["campaign"]
        for row in store.campaigns()
        if row["campaign"] not in held
        and row["pivots"]
        and not any(differences(store, campaign, row["campaign"]) for campaign in campaigns[:1])
    ]


def differences(store: Store, one: str, other: str) -> list[tuple[str, Any, Any]]:
    """The facts by which two campaigns, ids, measure different quantities: name, the one's, the other's."""
    mine, theirs = (_facts(store, campaign, store.revision([campaign])) for campaign in (one, other))
    return [
        (key, mine.get(key), theirs.get(key))
        for key in dict.fromkeys([*mine, *theirs])
        if mine.get(key) != theirs.get(key)
    ]


@lru_cache(maxsize=512)
def _facts(store: Store, campaign: str, _revision: tuple[Any, ...]) -> dict[str, Any]:
    row = store.campaign(campaign)
    settings = row["settings"]
    stated = settings.get("stated", {}).get("config", {})
    facts = {"model": row["model"], "k": row["k"], "passes": ", ".join(sorted(row["passes"]))}
    facts |= {key: settings.get(key) for key in SETTINGS}
    hotter = settings.get("continuation_temperature")
    facts["continuation_temperature"] = settings.get("temperature") if hotter is None else hotter
    facts |= {key: row[key] for key in _ENGINE} | _engine_facts(store, campaign)
    # What an imported file says beyond the settings we know is compared by its own name.
    ours = {*SETTING_NAMES, *PROBLEM_SETTING_NAMES}
    facts |= {f"`{key}`": value for key, value in stated.items() if key not in ours}
    return {key: value for key, value in facts.items() if value is not None}


def _engine_facts(store: Store, campaign: str) -> dict[str, Any]:
    used = {row["engine"] for row in store.problems(campaign) if row["state"] == "done"}
    infos = [info for digest, info in store.engines(campaign).items() if digest in used]
    if len(infos) == 1:
        return {f"engine's {key}": value for key, value in infos[0].items()}
    return {"engine facts": ", ".join(sorted(str(digest) for digest in used if digest is not None)) or None}


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)
