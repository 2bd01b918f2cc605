"""The engine process: the same answers as in-process, and what happens when either side goes away."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.engines.base import ContinuationRequest, Point, Quiet, RolloutRequest, Sampling
from backend.engines.remote import RemoteEngine
from backend.engines.scripted_engine import ScriptedEngine
from backend.engines.wire import EngineSpec, decode, encode, failure, parse, plain, raised
from backend.errors import Cancelled, OutOfMemory, UserError, WorkFailed
from backend.records import TopK

ROOT = Path(__file__).resolve().parents[3]
SPEC = EngineSpec("scripted", "toy", "toy", "float32")
SAMPLING = Sampling(0.7, 0.95, 40)


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteEngine]:
    engine = RemoteEngine(SPEC)
    yield engine
    engine.close()


def test_every_answer_is_that_of_the_engine_itself(remote: RemoteEngine) -> None:
    local = ScriptedEngine("toy", "float32", {})
    assert remote.info() == local.info()
    prompt = local.prompt_ids([{"role": "user", "content": "What is 3 + 4?"}], "")
    assert remote.prompt_ids([{"role": "user", "content": "What is 3 + 4?"}], "") == prompt
    requests = [RolloutRequest(f"r{i}", prompt, i, SAMPLING) for i in range(3)]
    traces = local.rollouts(requests, Quiet())
    assert remote.rollouts(requests, Quiet()) == traces
    points = [Point("r1", len(prompt) + 2)]
    assert remote.verify(points, Quiet()) == local.verify(points, Quiet())
    asked = [ContinuationRequest("r1", len(prompt) + 2, traces[1].ids[2], seed, SAMPLING) for seed in range(2)]
    for source in ("exact", "refeed"):
        assert remote.continuations(asked, source, Quiet()) == local.continuations(asked, source, Quiet())
    assert remote.rebuild(traces, Quiet()) == local.rebuild(traces, Quiet())
    assert remote.holds(["r0", "nobody"]) == [True, False]
    assert remote.token_bytes(list(range(259))) == local.token_bytes(list(range(259)))
    remote.release(["r0"])
    assert remote.holds(["r0"]) == [False]
    assert remote.capacity() is None


def test_a_mistake_arrives_as_its_sentence(remote: RemoteEngine) -> None:
    with pytest.raises(UserError, match="nobody"):
        remote.verify([Point("nobody", 5)], Quiet())
    assert remote.alive()


def test_an_engine_that_cannot_be_loaded_leaves_no_process() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(UserError, match="engine 'steam' is unknown"):
        RemoteEngine(EngineSpec("steam", "x", "x", "float32"))
    with pytest.raises(UserError, match="cannot be started"):
        RemoteEngine(SPEC, python="/nowhere/python")
    assert set(psutil.Process().children()) == before


def test_a_call_is_cancelled_and_the_engine_lives_on() -> None:
    class Stop:
        def __init__(self) -> None:
            self.until = time.monotonic() + 0.3

        def tick(self, tokens: int) -> None:
            if time.monotonic() > self.until:
                raise Cancelled("enough")

    engine = RemoteEngine(EngineSpec("scripted", "toy", "toy", "float32", options={"delay": 0.05}))
    try:
        with pytest.raises(Cancelled, match="enough"):
            engine.rollouts([RolloutRequest("slow", [1, 2, 3], 1, Sampling(0.7, 0.95, 4000))], Stop())
        assert engine.holds(["slow"]) == [False]
    finally:
        engine.close()


def test_a_killed_engine_is_an_error_that_says_how_it_ended() -> None:
    engine = RemoteEngine(SPEC)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(WorkFailed, match=rf"engine process {engine.pid} ended by signal 9"):
        engine.holds(["r"])
    with pytest.raises(WorkFailed, match="ended by signal 9"):
        engine.holds(["r"])
    assert not engine.alive()
    engine.release(["r"])  # nothing to release in a process that is gone
    engine.close()


def test_the_engine_goes_with_its_host() -> None:
    host = (
        "import time\n"
        "from backend.engines.remote import RemoteEngine\n"
        "from backend.engines.wire import EngineSpec\n"
        "print(RemoteEngine(EngineSpec('scripted', 'toy', 'toy', 'float32')).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", host], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = psutil.Process(int(process.stdout.readline()))
        process.kill()
        worker.wait(timeout=10)
    assert not worker.is_running()


def test_the_host_needs_no_torch() -> None:
    script = "import sys, backend.engines.remote, backend.jobs, backend.live; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_logprobs_cross_the_pipe_bit_for_bit() -> None:
    top = TopK([1, 2, 3, 4], [0.0, -0.0, -math.inf, -1.2345678901234567])
    line = encode({"result": plain([top])})
    (back,) = parse(list[TopK], decode(line)["result"])
    assert [value.hex() for value in back.logprobs] == [value.hex() for value in top.logprobs]


@pytest.mark.parametrize("error", [UserError("a"), WorkFailed("b"), OutOfMemory("c"), Cancelled("d")])
def test_failures_cross_the_pipe_as_what_they_are(error: Exception) -> None:
    back = raised(failure(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_any_other_failure_is_one_sentence() -> None:
    back = raised(failure(ZeroDivisionError("division by zero\nand more")))
    assert isinstance(back, WorkFailed)
    assert str(back) == "the engine failed (ZeroDivisionError: division by zero)"
