"""How long the dashboard takes from its command to its first page, and what memory it then has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from backend.bench.result import Result, peak_memory
from backend.errors import WorkFailed

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds after which the dashboard is given up."""
START_BUDGET = 5.0
MEMORY_BUDGET = 500.0


def measure_start(script: Path = ROOT / "app.py") -> list[Result]:
    """Start the dashboard on a store of its own, ask for its pages as a browser does, and wait for each one's end."""
    if not script.is_file():
        raise WorkFailed(f"{script} is not there; restore it from the repository")
    with tempfile.TemporaryDirectory(prefix="pivotscope-bench-") as folder:
        port = _free_port()
        command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true"]
        command += ["--server.address=127.0.0.1", f"--server.port={port}", "--browser.gatherUsageStats=false"]
        command += ["--client.showErrorDetails=full"]  # to say why a page failed
        environment = {**os.environ, "PIVOTSCOPE_STORE": str(Path(folder) / "bench.duckdb")}
        clock = time.perf_counter()
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _await_health(server, f"http://127.0.0.1:{port}/_stcore/health")
            listening = time.perf_counter() - clock
            with _connected(port) as channel:
                _show(channel, "")
                seconds = time.perf_counter() - clock
                deadline = time.monotonic() + PATIENCE
                while _show(channel, "") and time.monotonic() < deadline:
                    time.sleep(0.2)
                for page in sorted(path.stem for path in script.parent.glob("pages/*.py")):
                    _show(channel, page)
            memory = peak_memory(server.pid)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    return [
        Result(
            "dashboard, start to first page", seconds, "s", START_BUDGET, note=f"it listens after {listening:.1f} s"
        ),
        Result(
            "dashboard, peak memory",
            memory / 2**20,
            "MiB",
            MEMORY_BUDGET,
            note="after each page, bundled campaigns included",
        ),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1) as answer:  # noqa: S310 (our own loopback address)
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.02)
    raise WorkFailed("the dashboard did not start; `streamlit run app.py` shows why")


@contextmanager
def _connected(port: int) -> Iterator[ClientConnection]:
    """A browser's WebSocket to Streamlit."""
    try:
        with connect(
            f"ws://127.0.0.1:{port}/_stcore/stream",
            subprotocols=[Subprotocol("streamlit")],
            origin=Origin(f"http://127.0.0.1:{port}"),
            max_size=None,
        ) as channel:
            yield channel
    except (OSError, TimeoutError, WebSocketException) as error:
        raise WorkFailed(f"the dashboard's pages did not come ({error or 'it took too long'})") from None


def _show(channel: ClientConnection, page: str) -> bool:
    """Ask for a page and read until its script has ended; whether it shows a progress, as of campaigns coming in."""
    message = BackMsg()
    message.rerun_script.page_name = page
    message.rerun_script.query_string = ""
    channel.send(message.SerializeToString())
    progress = False
    while True:
        answer = ForwardMsg()
        answer.ParseFromString(channel.recv(timeout=PATIENCE, decode=False))
        element = answer.delta.new_element
        if element.HasField("exception"):
            raise WorkFailed(f"the page {page or 'shown first'} failed ({element.exception.message})")
        progress = progress or element.HasField("progress")
        if answer.HasField("script_finished"):
            return progress
