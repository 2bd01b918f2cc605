"""How fast a token is replayed and a campaign is run, against stock `model.generate` on the same work."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from backend.bench.result import Result, peak_memory
from backend.bench.stock import Job, Request, Timing, time_stock
from backend.campaign import run_campaign
from backend.engines.base import Quiet
from backend.engines.remote import RemoteEngine
from backend.engines.wire import EngineSpec
from backend.errors import UserError, WorkFailed
from backend.launching import problems_of
from backend.live import Bench, Place, spec_for
from backend.pivots import pivot_at
from backend.problems import load_problems
from backend.records import ARMS, PROBE, Pivot, Rollout
from backend.runs import RunFolder
from backend.settings import CampaignSettings, load_settings, make_settings
from backend.shards import read_shard, shard_files
from backend.store import Store

REPEATS = 3
"""Replays of which the median counts."""
K = 4
BUDGET_TOKENS = 64
"""Length of the continuations that the budgets speak of."""
SAMPLE = 24
"""Requests of a campaign that stock `generate` does one by one: all of them would take hours."""
EXAMPLE = Path(__file__).resolve().parents[2] / "data" / "examples" / "smol.toml"

Say = Callable[[str], None]


def measure_replay(model: str, threads: int, tokens: int, say: Say) -> list[Result]:
    """One token in three passes with k = 4, the way a click or `replay` does it, store and grading included."""
    settings = _settings(model, tokens)
    spec = _spec(settings, threads)
    with (
        tempfile.TemporaryDirectory(prefix="pivotscope-bench-") as folder,
        Store(Path(folder) / "bench.duckdb") as store,
    ):
        say(f"sampling a rollout of {model}")
        with closing(RemoteEngine(spec)) as engine:
            bench = Bench(engine, store)
            place, position = _place(bench, settings)
            bench.replay(place, position, Quiet(), k=K, max_continuation_tokens=8)
            say(f"replaying one token {REPEATS} times: k = {K}, three passes, {tokens}-token continuations")
            seconds, document = [], {}
            for _ in range(REPEATS):
                clock = time.perf_counter()
                document = bench.replay(place, position, Quiet(), k=K, max_continuation_tokens=tokens)
                seconds.append(time.perf_counter() - clock)
            memory = peak_memory(engine.pid)
        rollout = store.rollout(place.campaign, place.problem, place.rollout)
    requests = list(_requests(rollout, document["run"]))
    say(f"the same {len(requests)} continuations by stock generate, one by one and in calls of 8")
    singly, batched = time_stock(_job(spec, settings, threads, requests, [1, 8]))
    ours, full = statistics.median(seconds), tokens >= BUDGET_TOKENS
    work = f"{len(requests)} continuations, {sum(request.tokens for request in requests)} tokens"
    return [
        Result("replay of one token", ours, "s", 30.0 if full else None, note=f"{work}; median of {REPEATS}"),
        _faster("replay against generate, one continuation a call", singly, ours, 5.0 if full else None),
        _faster("replay against generate, calls of 8", batched, ours, 1.3 if full else None),
        Result("worker, peak memory", memory / 2**20, "MiB", 3 * 1024.0),
    ]


def measure_campaign(model: str, threads: int, say: Say) -> list[Result]:
    """The example campaign's tokens a second, against stock `generate` one by one on a sample of its requests."""
    settings = load_settings(EXAMPLE).model_copy(update={"model": model})
    spec = _spec(settings, threads)
    with tempfile.TemporaryDirectory(prefix="pivotscope-bench-") as scratch:
        say(f"running the campaign of {EXAMPLE.name}")
        folder = RunFolder.of(Path(scratch) / "bench.duckdb", settings.campaign)
        with closing(RemoteEngine(spec)) as engine:
            outcome = run_campaign(settings, problems_of(settings), engine, folder, Quiet())
        records = [read_shard(path) for path in shard_files(folder.shards)]
    rollouts = [rollout for record in records for rollout in record.rollouts]
    requests = [Request(one.prompt_ids, len(one.ids), settings.temperature == 0) for one in rollouts]
    requests += [request for rollout in rollouts for request in _requests(rollout, "campaign")]
    sample = random.Random(0).sample(requests, min(SAMPLE, len(requests)))
    say(f"{len(sample)} of its {len(requests)} requests by stock generate, one by one")
    (timing,) = time_stock(_job(spec, settings, threads, sample, [1]))
    stock = sum(request.tokens for request in sample) / timing.seconds
    ours = sum(request.tokens for request in requests) / outcome.seconds
    return [
        Result("campaign", ours, "tokens/s", note=f"{len(requests)} requests in {outcome.seconds:.0f} s, all included"),
        Result("generate, one request a call", stock, "tokens/s", note=f"a random sample of {len(sample)} of them"),
        Result("campaign against generate", ours / stock, "times faster", 10.0, "at least"),
    ]


def _settings(model: str, tokens: int) -> CampaignSettings:
    return make_settings(
        {
            "name": "bench",
            "model": model,
            "engine": "transformers",
            "rollouts": 4,
            "k": K,
            "max_rollout_tokens": 192,
            "max_continuation_tokens": tokens,
        },
        "the benchmark's settings",
    )


def _spec(settings: CampaignSettings, threads: int) -> EngineSpec:
    found = spec_for(settings.model, settings.dtype)
    return EngineSpec(found.engine, found.name, found.path, found.dtype, found.sha256, options={"threads": threads})


def _place(bench: Bench, settings: CampaignSettings) -> tuple[Place, int]:
    """The longest of some rollouts, and an early position in it, so that few continuations end before their limit."""
    (problem,) = load_problems(set="arithmetic", first=2, count=1)
    bench.sample(settings, problem, settings.rollouts, Quiet())
    info = bench.engine.info()
    rows = bench.store.rollouts(settings.campaign, problem.problem)
    longest = max(rows, key=lambda row: row["tokens"])["rollout"]
    rollout = bench.store.rollout(settings.campaign, problem.problem, longest)
    start = len(rollout.prompt_ids)
    for position in range(start + 4, start + len(rollout.ids)):
        try:
            pivot_at(rollout, position, special_ids=info.special_ids, eos_ids=info.eos_ids)
        except UserError:
            continue
        return Place(settings.campaign, problem.problem, longest), position
    raise WorkFailed(f"no rollout of {problem.problem} has a token to replay; the model answers with nothing")


def _requests(rollout: Rollout, run: str) -> Iterator[Request]:
    """What stock generate must complete to do the work of a run's measurements."""
    ids = rollout.prompt_ids + rollout.ids
    for pivot in rollout.pivots:
        for measurement in pivot.measurements:
            for one in measurement.continuations if measurement.run == run else []:
                token = _token(pivot, one.arm)
                yield Request([*ids[: pivot.position], token], len(one.ids), one.i == PROBE)


def _token(pivot: Pivot, arm: str) -> int:
    token = pivot.actual if arm == ARMS[0] else pivot.alternative
    assert token is not None, "what was measured here has both tokens"
    return token


def _job(
    spec: EngineSpec, settings: CampaignSettings, threads: int, requests: list[Request], batches: list[int]
) -> Job:
    wanted = [request for request in requests if request.tokens]
    return Job(spec.path, spec.dtype, threads, settings.temperature, settings.top_p, wanted, batches)


def _faster(name: str, stock: Timing, ours: float, goal: float | None) -> Result:
    note = f"{stock.calls} calls took {stock.seconds:.1f} s"
    return Result(name, stock.seconds / ours, "times faster", goal, "at least", note)
