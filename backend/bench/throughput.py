"""Replay on vLLM against vLLM alone: `python -m backend.bench.throughput`, in an interpreter that has vLLM.

One run, one machine, the same requests twice. First through everything that Pivotscope does: the engine process, the
forced tails, the sampler, the instrument readings, grading, hashing. Then as bare `LLM.generate` over the same prompts
with seeded sampling, in a process of its own so that neither inherits the other's caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backend import models
from backend.engines.base import Quiet, RolloutRequest, Sampling
from backend.engines.remote import RemoteEngine
from backend.engines.wire import EngineSpec
from backend.measure import Cut
from backend.pivots import pivots_of
from backend.problems import load_problems, messages, plain_prompt
from backend.records import PROBE, STANDARD_PASSES, Rollout
from backend.replay import ReplaySettings, replay, rollout_seed, wanted_of

LIMIT = Sampling(0.7, 0.95, 160)
ROLLOUT = Sampling(0.7, 0.95, 192)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=models.PACKAGED_MODEL)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--sequences", type=int, nargs="+", default=[256])
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.bare is not None:
        print(json.dumps(bare(json.loads(args.bare.read_text(encoding="utf-8")))))
        return 0
    for sequences in args.sequences:
        print(json.dumps(measured(args.model, args.problems, sequences)), flush=True)
    return 0


def options(sequences: int) -> dict[str, Any]:
    """What both engines are started with."""
    return {"max_num_seqs": sequences, "kv_cache_memory_bytes": 8 << 30, "gpu_memory_utilization": 0.15}


def measured(name: str, problems: int, sequences: int) -> dict[str, Any]:
    """Tokens a second of the pipeline and of the bare engine over the same requests."""
    model = models.fetch(name)
    engine = RemoteEngine(
        EngineSpec("vllm", name, str(model.path), "bfloat16", model.sha256, False, options(sequences))
    )
    try:
        length = {"max_model_len": engine.info().context_length}
        cuts = sampled(engine, problems)
        settings = ReplaySettings(4, LIMIT)
        every = _Counting()
        started = time.perf_counter()
        found = replay(engine, cuts, settings, every)
        seconds = time.perf_counter() - started
    finally:
        engine.close()
    tokens = sum(len(c.ids) for pass_ in found.values() for one in pass_ for c in one.continuations)
    work = {"model": str(model.path), "options": options(sequences) | length, "requests": requests(cuts, settings)}
    alone = in_a_process_of_its_own(work)
    return {
        "sequences": sequences,
        "pivots": len(cuts),
        "requests": len(work["requests"]) * len(STANDARD_PASSES),
        "pipeline": {
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            # Of the engine's calls alone: verification, transport and grading are what is missing to `seconds`.
            "passes": {name: pass_[0].seconds for name, pass_ in found.items()},
        },
        "bare": alone,
        "ratio": (tokens / seconds) / alone["tokens_per_second"],
        # What exactness costs beside: tails that are forced through decode steps, and the verification requests.
        "decoded": every.tokens,
        "decoded_ratio": (every.tokens / seconds) / alone["tokens_per_second"],
    }


class _Counting:
    """A control that counts every token that the engine decodes, the forced ones included."""

    tokens = 0

    def tick(self, tokens: int) -> None:
        self.tokens += tokens


def sampled(engine: RemoteEngine, count: int) -> list[Cut]:
    """Two rollouts a problem and up to three pivots each."""
    info = engine.info()
    asked, problems = [], load_problems(set="arithmetic", count=count)
    for problem in problems:
        ids = engine.prompt_ids(messages(problem.question), plain_prompt(problem.question))
        asked += [
            RolloutRequest(f"{problem.problem}/{i}", ids, rollout_seed(problem.problem, i), ROLLOUT) for i in range(2)
        ]
    cuts = []
    for i, trace in enumerate(engine.rollouts(asked, Quiet())):
        tops = [top.ids for top in trace.top], [top.logprobs for top in trace.top]
        rollout = Rollout(i % 2, asked[i].seed, trace.prompt_ids, trace.ids, trace.logprobs, *tops, "stop", None, None)
        chosen = pivots_of(
            rollout,
            margin_below=1.0,
            max_pivots=3,
            boundary_slack=-1,
            special_ids=info.special_ids,
            eos_ids=info.eos_ids,
        )
        problem = problems[i // 2]
        cuts += [Cut(problem.problem, problem.gold, trace.handle, rollout, pivot, "live") for pivot in chosen]
    return cuts


def requests(cuts: list[Cut], settings: ReplaySettings) -> list[dict[str, Any]]:
    """The continuations of one pass as plain prompts."""
    found = []
    for cut in cuts:
        line = [*cut.rollout.prompt_ids, *cut.rollout.ids][: cut.pivot.position]
        for wanted in wanted_of(cut, settings):
            request = wanted.request
            limit = {"temperature": 0.0, "max_tokens": 32} if wanted.i == PROBE else {"max_tokens": LIMIT.max_tokens}
            found.append({"prompt": [*line, request.token], "seed": request.seed, **limit})
    return found


def in_a_process_of_its_own(work: dict[str, Any]) -> dict[str, Any]:
    """`bare` in a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(work), encoding="utf-8")
        command = [sys.executable, "-m", "backend.bench.throughput", "--bare", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def bare(work: dict[str, Any]) -> dict[str, Any]:
    """`LLM.generate` over the requests, once a pass, prefix cache on."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(model=work["model"], dtype="bfloat16", enable_prefix_caching=True, **work["options"])
    prompts = [TokensPrompt(prompt_token_ids=one["prompt"]) for one in work["requests"]]
    sampling = [
        SamplingParams(
            temperature=one.get("temperature", LIMIT.temperature),
            top_p=LIMIT.top_p,
            max_tokens=one["max_tokens"],
            seed=one["seed"],
            logprobs=0,
        )
        for one in work["requests"]
    ]
    llm.generate(prompts[:64], sampling[:64], use_tqdm=False)  # warm
    started = time.perf_counter()
    tokens = 0
    for _ in STANDARD_PASSES:
        tokens += sum(len(one.outputs[0].token_ids) for one in llm.generate(prompts, sampling, use_tqdm=False))
    seconds = time.perf_counter() - started
    return {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}


if __name__ == "__main__":
    sys.exit(main())
