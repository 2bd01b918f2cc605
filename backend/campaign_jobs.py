"""Campaigns as jobs of the dashboard: start, resume, cancel, remove. Whatever process runs one, its files tell."""

from __future__ import annotations

import hashlib
import os

from backend.campaign import Outcome, run_campaign
from backend.collecting import collect_run
from backend.errors import UserError
from backend.ingest import Campaign
from backend.jobs import Handle, Job, Jobs
from backend.launching import claimed, problems_of, refuse_other_settings, spec_of
from backend.progress import Progress
from backend.removing import remove_campaign
from backend.runs import RunFolder, RunHeldError
from backend.settings import CampaignSettings, make_settings

__all__ = ["campaign_job", "cancel", "remove", "resume", "settings_of", "step", "submit_campaign"]


def submit_campaign(jobs: Jobs, settings: CampaignSettings) -> int:
    """Queue a campaign, or what is missing of it; gives the job's id. The same campaign is queued once.

    Raises `UserError` for other settings under a known name, and for problems that cannot be read.
    """
    folder = RunFolder.of(jobs.store.path, settings.campaign)
    refuse_other_settings(settings, folder)
    if settings.problems.file is not None or settings.problems.set == "arithmetic":
        problems_of(settings)  # what is on this disk is looked at before anybody waits for it

    def work(handle: Handle) -> str:
        return _run(jobs, settings, folder, handle)

    digest = hashlib.sha256(settings.document().encode()).hexdigest()[:12]
    return jobs.submit(f"{_prefix(settings.campaign)}{digest}", f"Campaign {settings.name}", work)


def resume(jobs: Jobs, campaign: str) -> int:
    """Queue what is missing of a campaign, with the settings it was started with; gives the job's id."""
    return submit_campaign(jobs, settings_of(jobs, campaign))


def settings_of(jobs: Jobs, campaign: str) -> CampaignSettings:
    """A campaign's settings, of its files or else of the store. Raises `UserError` for one that is not run here."""
    stored = RunFolder.of(jobs.store.path, campaign).settings()
    if stored is not None:
        return stored
    row = jobs.store.campaign(campaign)
    if row["origin"] != "run":
        raise UserError(f"campaign {row['name']} was not run here, so there is nothing to resume")
    return make_settings(row["settings"], f"campaign {row['name']}")


def cancel(jobs: Jobs, campaign: str) -> None:
    """Stop a campaign, waiting or running, here or in another process; what is finished stays."""
    for job in jobs.all():
        if job.key.startswith(_prefix(campaign)) and not job.over:
            jobs.cancel(job.id)
    folder = RunFolder.of(jobs.store.path, campaign)
    if folder.runner() not in (None, os.getpid()):
        folder.request_cancel()


def remove(jobs: Jobs, campaign: str) -> None:
    """Delete a campaign with everything it holds. Raises `UserError` while it waits or runs."""
    job = campaign_job(jobs, campaign)
    if job is not None and not job.over:
        raise UserError(f"{job.title[:1].lower()}{job.title[1:]} is {job.state}; cancel it first, then remove it")
    with jobs.collecting:
        remove_campaign(jobs.store, campaign)


def campaign_job(jobs: Jobs, campaign: str) -> Job | None:
    """The newest job of a campaign in this process."""
    return next((job for job in jobs.all() if job.key.startswith(_prefix(campaign))), None)


def step(progress: Progress) -> str:
    """What a run is doing, in words."""
    if not progress.phase:
        return "between two waves"
    return "sampling rollouts" if progress.phase == "rollouts" else f"pass {progress.phase}"


def _prefix(campaign: str) -> str:
    return f"campaign|{campaign}|"


def _run(jobs: Jobs, settings: CampaignSettings, folder: RunFolder, handle: Handle) -> str:
    """Run what is missing; gives the outcome in a sentence."""
    if folder.complete():
        return "Everything of this campaign was done already."
    handle.doing("looking up the problems and the model")
    problems, spec = problems_of(settings), spec_of(settings, handle.doing)
    try:
        # Claimed before the model is loaded: a process that starts the same campaign meanwhile loads none.
        with claimed(settings, folder):
            with jobs.collecting:
                jobs.store.ensure_campaign(Campaign.of(settings))
            engine = jobs.bench(spec, handle, settings.worker_python).engine
            outcome = run_campaign(settings, problems, engine, folder, handle, lambda progress: _show(handle, progress))
    except RunHeldError as held:
        # Its progress shows on the page from its files; waiting for it here would keep other work from the engine.
        return f"Process {held.pid} runs this campaign already, and it can be watched here."
    finally:
        _settle(jobs, settings.campaign, folder)
    return _sentence(outcome)


def _settle(jobs: Jobs, campaign: str, folder: RunFolder) -> None:
    """Take in what a run has finished, or forget the campaign if it could not begin."""
    with jobs.collecting:
        if folder.path.is_dir():
            collect_run(jobs.store, folder)
        elif any(row["campaign"] == campaign for row in jobs.store.campaigns()):
            jobs.store.remove_campaign(campaign)


def _show(handle: Handle, progress: Progress) -> None:
    handle.phase(f"{step(progress)}, {progress.done} of {progress.total} problems", progress.fraction)


def _sentence(outcome: Outcome) -> str:
    parts = [f"{outcome.done} problems done"]
    parts += [f"{outcome.screened_out} screened out"] if outcome.screened_out else []
    parts += [f"{outcome.failed} failed"] if outcome.failed else []
    return f"{', '.join(parts)} in {outcome.seconds:.0f} s."
