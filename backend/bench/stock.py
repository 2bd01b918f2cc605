"""The benchmark's yardstick: stock `model.generate` of transformers, in a process of its own.

`python -m backend.bench.stock` reads a `Job` as JSON from stdin, and writes the time of each batch size to stdout. Each
request generates exactly as many tokens as Pivotscope did for it, so that both do the same work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from backend.errors import WorkFailed

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to complete."""

    ids: list[int]
    """The whole prefix, prefilled."""
    tokens: int
    """How many tokens to generate."""
    greedy: bool


@dataclass(frozen=True, slots=True)
class Job:
    """What to complete, and how."""

    path: str
    dtype: str
    threads: int
    temperature: float
    top_p: float
    requests: list[Request]
    batches: list[int]
    """Sizes of the calls to `generate`; each is a measurement of its own over all requests."""


@dataclass(frozen=True, slots=True)
class Timing:
    """All requests by calls of one size."""

    batch: int
    calls: int
    seconds: float
    """Inside `generate`, after a warm-up."""


def time_stock(job: Job) -> list[Timing]:
    """Run a job in a child process. Raises `WorkFailed` where that does not work."""
    command = [sys.executable, "-m", "backend.bench.stock"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkFailed(f"the comparison with stock transformers failed ({last}); run the benchmark again")
    return [Timing(**timing) for timing in json.loads(done.stdout)]


def batches_of(requests: Sequence[Request], size: int) -> Iterator[list[Request]]:
    """Requests in calls of at most `size`, equal lengths and kinds together, so that none needs padding."""

    def kind(request: Request) -> tuple[bool, int]:
        return request.greedy, len(request.ids)

    for _, group in groupby(sorted(requests, key=kind), key=kind):
        alike = list(group)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _serve(job: dict[str, Any]) -> list[Timing]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(
        job["path"], dtype=getattr(torch, job["dtype"]), local_files_only=True, trust_remote_code=False
    ).eval()
    requests = [Request(**request) for request in job["requests"]]

    def generate(batch: Sequence[Request], tokens: int) -> None:
        ids = torch.tensor([request.ids for request in batch])
        sampling = {"temperature": job["temperature"], "top_p": job["top_p"], "top_k": 0}
        how = {"do_sample": False} if batch[0].greedy else {"do_sample": True, **sampling}
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            **how,
        )

    timings = []
    with torch.inference_mode():
        for size in job["batches"]:
            calls = list(batches_of(requests, size))
            generate(calls[0], 4)
            clock = time.perf_counter()
            for call in calls:
                # A call goes on until its longest row is done.
                generate(call, max(request.tokens for request in call))
            timings.append(Timing(size, len(calls), time.perf_counter() - clock))
    return timings


if __name__ == "__main__":
    json.dump([asdict(timing) for timing in _serve(json.load(sys.stdin))], sys.stdout)
