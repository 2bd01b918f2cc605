"""Taking finished shards into the store: done by whoever owns the store, each shard once."""

from __future__ import annotations

from backend.errors import PivotscopeError
from backend.ingest import Campaign
from backend.runs import RunFolder, run_folders
from backend.store import Store


def collect(store: Store) -> int:
    """Ingest what the runs beside the store have finished; gives the number of shards taken in.

    A shard that the store refuses is set aside in its run's folder with the reason.
    """
    return sum(collect_run(store, folder) for folder in run_folders(store.path))


def collect_run(store: Store, folder: RunFolder) -> int:
    """Ingest one run's finished shards, and note where the run stands."""
    try:
        settings = folder.settings()
    except PivotscopeError:
        return 0  # its page says what is wrong with it
    if settings is None:
        return 0
    state = folder.state() or "interrupted"
    store.ensure_campaign(Campaign.of(settings, state=state))
    waiting = folder.waiting()
    report = store.ingest_shards(settings.campaign, list(waiting))
    for shard, written in waiting.items():
        if shard not in report.refused:
            folder.mark_ingested(shard, written)
    for shard, reason in report.refused.items():
        folder.set_aside(shard, reason)
    store.set_state(settings.campaign, state)
    return len(report.ingested)
