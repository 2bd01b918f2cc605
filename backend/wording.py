"""What a report says in plain words: its subject, its result in a sentence, and when not to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.tables import count, interval, percent, points

FEW_PROBLEMS = 10
"""Below this many problems a t statistic or a bootstrap over problems is shaky."""


def subject(document: Mapping[str, Any]) -> str:
    """Which campaigns, and what they measured."""
    return f"{' + '.join(document['names'])}: {setting(document)}"


def setting(document: Mapping[str, Any]) -> str:
    """What was measured, in one line."""
    facts = [document["model"] or "unknown model", f"engine {document['engine'] or 'unknown'}"]
    facts += [f"{document['dtype']}"] if document["dtype"] else []
    facts += [f"k = {document['k']}"] if document["k"] is not None else []
    return ", ".join(facts)


def engine_name(engine: Mapping[str, Any]) -> str | None:
    """An engine with its release; `engine` are its facts, None where they are not on record."""
    return " ".join(str(engine[key]) for key in ("engine", "engine_version") if engine.get(key)) or None


def machine(engine: Mapping[str, Any]) -> str | None:
    """What an engine ran on, as closely as its facts say."""
    found: str | None = engine.get("device_name") or engine.get("device")
    return found


def headline(document: Mapping[str, Any]) -> str:
    """The result with its floor."""
    eligible, refeed, replica = document["eligible"], document["refeed"], document["replica"]
    if not document["pivots"]:
        return "There are no pivots yet, so there is nothing to report."
    if not eligible:
        return (
            f"None of {count(document['pivots'])} pivots has a credit other than 0 in any pass, "
            "so no sign could flip and the rates are undefined."
        )
    if refeed["rate"] is None:
        return f"Re-feeding was not measured; {count(eligible)} of {count(document['pivots'])} pivots are eligible."
    start = f"Re-feeding flips the sign of {percent(refeed['rate'])} of {count(eligible)} eligible pivots"
    if replica["rate"] is None:
        return f"{start}. There is no replica, so how much of that is noise is unknown."
    told = "undefined" if document["excess_pp_ci95"] is None else interval(document["excess_pp_ci95"], points)
    bound = bounded(replica)
    rare = "" if bound is None else f" ({bound} at 95 %)"
    return (
        f"{start}; an identical repeat flips {percent(replica['rate'])}{rare}. Excess over that floor: "
        f"{points(document['excess_pp'])} (95 % interval {told}) "
        f"over {count(document['clusters'])} problems."
    )


def bounded(flips: Mapping[str, Any]) -> str | None:
    """How rare flips must be where none was seen; `flips` is a pass's of a report, None where one was seen."""
    bound = flips["problems_upper95"]
    return None if bound is None else f"under {percent(bound)} of problems"


def cautions(document: Mapping[str, Any]) -> list[str]:
    """Reasons not to trust the numbers as they stand, a sentence each, the gravest first."""
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    groups, k = document["clusters"], document["k"]
    found = [f"The check {check['name']} failed: {check['detail']}" for check in failed]
    if document["final"] is False:
        found.append("The file says of itself that its run was cut off: problems are missing, perhaps not at random.")
    if unfinished := [state for state in document["states"] if state not in {"done", "imported"}]:
        found.append(f"The campaign is {unfinished[0]}: its numbers can still change.")
    if document["pivots"] and document["replica"]["rate"] is None and document["eligible"]:
        found.append("There is no replica pass, so there is no floor to read the flip rate against.")
    if document["incomplete"]:
        found.append(
            f"{count(document['incomplete'])} of {count(document['pivots'])} pivots are incomplete "
            "and left out of every rate."
        )
    if 0 < groups < FEW_PROBLEMS:
        only = "only one problem has" if groups == 1 else f"only {groups} problems have"
        told = "intervals and tests are undefined" if groups == 1 else "intervals and t statistics are unreliable"
        found.append(f"{only.capitalize()} an eligible pivot: {told}.")
    if k == 1 and document["pivots"]:
        found.append(
            "With k = 1 a credit is −1, 0 or 1: one changed answer flips it, "
            "and the Jaccard index is the same at every threshold."
        )
    return found
