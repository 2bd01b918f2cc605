"""`run CONFIG.toml`, `watch CAMPAIGN` and `cancel CAMPAIGN`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from backend.cli.command import Answer, Command
from backend.cli.following import find_run, follow
from backend.cli.progress import Bar, duration, say, show_campaign
from backend.cli.stopping import Stoppable
from backend.collecting import collect_run
from backend.engines.remote import RemoteEngine
from backend.errors import Cancelled, PivotscopeError, UserError, WorkFailed
from backend.launching import claimed, problems_of, refuse_other_settings, spec_of
from backend.opening import open_store
from backend.progress import Progress
from backend.runs import RunFolder, RunHeldError
from backend.settings import CampaignSettings, load_settings
from backend.store_errors import StoreHeldError

STORE_PATIENCE = 5.0
"""Seconds to wait at the end of a run for a store that another process holds: most hold it for a moment."""


def _describe_run(parser: ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="a campaign file")


def _run(args: Namespace) -> Answer:
    settings = load_settings(args.config)
    store: Path = args.store.resolve()
    folder = RunFolder.of(store, settings.campaign)
    refuse_other_settings(settings, folder)
    _refuse_unusable(store)
    try:
        progress = _compute(settings, args.config.resolve().parent, folder)
    except RunHeldError as held:
        say(f"Campaign {settings.name} is being run by process {held.pid}; following it.")
        progress = follow(folder)
    except (Cancelled, WorkFailed):
        with suppress(PivotscopeError):  # the first failure is the one to tell
            _take_in(store, folder)
        raise
    ingested = _take_in(store, folder)
    if progress.failed and not progress.done:
        raise WorkFailed(f"all problems of campaign {settings.name} failed; {progress.message or 'its log says why'}")
    return Answer({**_document(progress), "ingested": ingested, "store": str(store)}, _text(progress))


def _compute(settings: CampaignSettings, beside: Path, folder: RunFolder) -> Progress:
    """Run the campaign in this process. Raises `RunHeldError` where another one does."""
    from backend.campaign import run_campaign

    problems = problems_of(settings, beside)
    runner = folder.runner()
    if runner is not None:
        raise RunHeldError(settings.name, runner)
    if folder.complete():
        return _progress(folder)
    with Bar() as bar:
        spec = spec_of(settings, bar.fetching)
        # Claimed before the model is loaded: a process that starts the same campaign meanwhile loads none.
        with claimed(settings, folder):
            bar.show(f"loading {spec.name}", None)
            engine = RemoteEngine(spec, python=settings.worker_python)
            try:
                with Stoppable() as control:
                    run_campaign(
                        settings, problems, engine, folder, control, lambda progress: show_campaign(bar, progress)
                    )
            finally:
                engine.close()
    return _progress(folder)


def _refuse_unusable(store: Path) -> None:
    """Find out before the work whether its results can be stored, and make a new store."""
    with suppress(StoreHeldError):  # its owner takes the shards in
        open_store(store, campaigns=[]).close()


def _take_in(store: Path, folder: RunFolder) -> bool:
    """Ingest what is finished; False, and a sentence, where another process holds the store and will do so."""
    try:
        with open_store(store, campaigns=[], patience=STORE_PATIENCE) as opened:
            collect_run(opened, folder)
    except StoreHeldError:
        say("Another process holds the store; it takes the finished problems in.")
        return False
    return True


def _progress(folder: RunFolder) -> Progress:
    progress = folder.progress()
    if progress is None:
        raise WorkFailed(f"{folder.path / 'progress.json'} is gone or damaged; run the campaign again, it goes on")
    return progress


def _describe_one(parser: ArgumentParser) -> None:
    parser.add_argument("campaign", metavar="CAMPAIGN", help="an id or a unique name")


def _watch(args: Namespace) -> Answer:
    progress = follow(find_run(args.store.resolve(), args.campaign))
    return Answer(_document(progress), _text(progress))


def _cancel(args: Namespace) -> Answer:
    folder = find_run(args.store.resolve(), args.campaign)
    runner = folder.runner()
    if runner is None:
        raise UserError(f"campaign {args.campaign} is not being run (it is {folder.state()}); there is nothing to stop")
    folder.request_cancel()
    return Answer({"campaign": folder.path.name, "pid": runner}, f"Process {runner} is asked to stop.")


def _document(progress: Progress) -> dict[str, Any]:
    names = ("campaign", "name", "state", "done", "screened_out", "failed", "seconds", "tokens", "tokens_per_second")
    return {**{name: getattr(progress, name) for name in names}, "problems": progress.total}


def _text(progress: Progress) -> str:
    counts = [f"{progress.done} of {progress.total} problems done"]
    counts += [f"{progress.screened_out} screened out"] if progress.screened_out else []
    counts += [f"{progress.failed} failed"] if progress.failed else []
    speed = "" if progress.tokens_per_second is None else f" at {progress.tokens_per_second:.0f} tokens a second"
    took = f"{progress.tokens:,} tokens in {duration(progress.seconds)}{speed}"
    lines = [f"Campaign {progress.name} ({progress.campaign}): {', '.join(counts)}; {took}."]
    return "\n".join([*lines, *([progress.message] if progress.message else [])])


COMMANDS = {
    "run": Command(_describe_run, _run),
    "watch": Command(_describe_one, _watch),
    "cancel": Command(_describe_one, _cancel),
}
