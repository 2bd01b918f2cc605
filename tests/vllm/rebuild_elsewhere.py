"""Rebuilds recorded rollouts in a process of its own and continues the first: prints one JSON line."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from backend.engines.base import Quiet
from backend.engines.vllm_options import enter, environment
from backend.records import TopK, Trace


def main(model: str, record: str) -> None:
    enter(environment("cpu"))
    from backend.engines.vllm_engine import VllmEngine
    from tests.vllm.test_engine import requests_at

    documents = json.loads(Path(record).read_text())
    traces = [Trace(**{**document, "top": [TopK(**top) for top in document["top"]]}) for document in documents]
    options = {"kv_cache_memory_bytes": 64 << 20}
    engine = VllmEngine(Path(model), "bfloat16", batch_invariant=False, options=options, name="llama")
    verdicts = engine.rebuild(traces, Quiet())
    batch = engine.continuations(requests_at(traces[0], 29), "exact", Quiet())
    document = {
        "provenance": [verdict.provenance for verdict in verdicts],
        "continuations": [asdict(c) for c in batch.continuations if c],
    }
    engine.close()
    sys.stdout.write("\n" + json.dumps(document) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
