"""Campaigns that another process runs: finding one by its files, and following it to its end."""

from __future__ import annotations

import difflib
import time
from pathlib import Path

from backend.cli.progress import Bar, show_campaign
from backend.errors import Cancelled, PivotscopeError, UserError, WorkFailed
from backend.progress import Progress
from backend.runs import RunFolder, run_folders

LOOK_EVERY = 0.2
"""Seconds between two looks at a run's progress."""


def find_run(store: Path, campaign: str) -> RunFolder:
    """The run of an id or a name beside a store, which need not be opened. Raises `UserError` where there is none."""
    names = {}
    for folder in run_folders(store):
        names[folder.path.name] = folder
        try:
            settings = folder.settings()
        except PivotscopeError:
            continue  # a damaged one can still be named by its id
        if settings is not None:
            names.setdefault(settings.name, folder)
    if campaign in names:
        return names[campaign]
    near = difflib.get_close_matches(campaign, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "start it with `run CONFIG.toml`"
    raise UserError(f"no campaign {campaign!r} was ever run beside {store}; {hint}")


def follow(folder: RunFolder) -> Progress:
    """Show a run's progress until nobody runs it any more, and give the last one.

    Raises what the run itself ended with: `Cancelled` where it was stopped, `WorkFailed` where it broke off.
    """
    with Bar() as bar:
        while folder.runner() is not None:
            progress = folder.progress()
            if progress is not None:
                show_campaign(bar, progress)
            time.sleep(LOOK_EVERY)
    progress, state = folder.progress(), folder.state()
    if progress is None:
        raise WorkFailed(f"the run in {folder.path} has left no progress; run the campaign again, it goes on")
    message = progress.message or "run it again to go on"
    if state == "cancelled":
        raise Cancelled(message)
    if state != "done":
        raise WorkFailed(f"campaign {progress.name} is {state}: {message}")
    return progress
