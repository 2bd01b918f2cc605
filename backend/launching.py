"""From a campaign's settings to what its run needs: the problems, and the engine on weights that are on this disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from backend import models
from backend.engines.wire import EngineSpec
from backend.errors import UserError
from backend.problems import load_problems
from backend.records import Problem
from backend.runs import RunFolder, RunHeldError
from backend.settings import CampaignSettings


def problems_of(settings: CampaignSettings, beside: Path | None = None) -> list[Problem]:
    """The problems that the campaign may look at, in the set's order.

    A relative problem file is looked for in the folder `beside` (the campaign file's), then in the working directory.
    Raises `UserError` when there are fewer than the campaign wants to keep.
    """
    chosen = settings.problems
    file = None if chosen.file is None else Path(chosen.file).expanduser()
    if file is not None and beside is not None and (beside / file).is_file():
        file = beside / file
    found = load_problems(set=chosen.set, file=file, first=chosen.first, count=chosen.limit)
    if len(found) < chosen.count:
        raise UserError(
            f"problems.count is {chosen.count}, but {chosen.set or file} has only {len(found)} problems from index "
            f"{chosen.first} on; give a count of at most {len(found)}"
        )
    return found


def spec_of(settings: CampaignSettings, progress: models.Progress = lambda _what, _share: None) -> EngineSpec:
    """The engine that the campaign asks for; its model is fetched where it is not on this disk yet.

    Raises `UserError` for a model that does not exist, `WorkFailed` when it could not be fetched.
    """
    options = dict(settings.engine_options)
    if settings.engine == "scripted":
        return EngineSpec(
            "scripted", settings.model, settings.model, settings.dtype, None, settings.batch_invariant, options
        )
    model = models.fetch(settings.model, progress)
    if model.path is None:
        raise UserError(f"model {settings.model} has no weights on this disk; fetch it again")
    return EngineSpec(
        settings.engine, settings.model, model.path, settings.dtype, model.sha256, settings.batch_invariant, options
    )


def refuse_other_settings(settings: CampaignSettings, folder: RunFolder) -> None:
    """Raise `UserError` when the campaign was started with other settings; a model need not be loaded to find out."""
    stored = folder.settings()
    if stored is not None and (differences := stored.differences(settings)):
        raise UserError(other_settings(settings.name, differences))


@contextmanager
def claimed(settings: CampaignSettings, folder: RunFolder) -> Iterator[None]:
    """Be the one process that loads the campaign's model and runs it; see `RunFolder.claim`.

    A new campaign that fails by its settings before its first problem is finished leaves nothing behind, so that they
    can be put right under the same name.
    """
    fresh = folder.settings() is None
    try:
        with folder.claim(settings):
            yield
    except RunHeldError:
        raise
    except UserError:
        if fresh and not folder.finished():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def other_settings(name: str, differences: Sequence[str]) -> str:
    """The sentence that refuses them."""
    return (
        f"campaign {name!r} was started with {'; '.join(differences)}: give the changed campaign another name, "
        "run it with the settings it was started with, or remove it first"
    )
