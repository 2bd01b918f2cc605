"""Removing a campaign: its rows, and the files of its run, which would bring it back."""

from __future__ import annotations

import shutil

from backend.errors import UserError
from backend.files import write_failure
from backend.runs import RunFolder
from backend.store import Store


def remove_campaign(store: Store, campaign: str) -> str:
    """Delete a campaign (an id or unique name) with everything it holds; gives its id. A bundled one stays away.

    Raises `UserError` for an unknown campaign, and for one that is being run.
    """
    found = store.find_campaign(campaign)
    folder = RunFolder.of(store.path, found)
    runner = folder.runner()
    if runner is not None:
        raise UserError(f"campaign {campaign} is being run by process {runner}; cancel it first, then remove it")
    try:
        # The files first: a kill in between leaves a campaign that can be removed again, not one that comes back.
        if folder.path.is_dir():
            shutil.rmtree(folder.path)
    except OSError as error:
        raise write_failure(folder.path, error) from None
    store.remove_campaign(found)
    return found
