"""Names for campaigns that come from a file."""

from __future__ import annotations

from backend.store import Store


def free_name(store: Store, wanted: str, campaign: str, *, instead_of: str | None = None) -> str:
    """`wanted`, or with the id behind it where another campaign has that name: a name should find one campaign.

    The name of a campaign that is about to be replaced is free.
    """
    taken = any(row["name"] == wanted and row["campaign"] not in {campaign, instead_of} for row in store.campaigns())
    return f"{wanted} ({campaign[:6]})" if taken else wanted
