"""A real browser in front of a real server, for tests of what only a browser can show."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]

CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """The system's Chromium, or None: the reason to skip a browser test."""
    return os.environ.get("PIVOTSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """One headless Chromium."""
    path = chromium_path()
    if path is None:
        raise FileNotFoundError("no chromium on the PATH: install Debian's package, or set PIVOTSCOPE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def serve(
    script: Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT, patience: float = 60.0
) -> Iterator[str]:
    """Run `streamlit run SCRIPT` in `cwd` on a free loopback port; yield its address; stop it and its children after.

    `env` is added to this process's environment; the project's folder leads PYTHONPATH. A server that ends early or
    does not answer within `patience` seconds raises RuntimeError with what it printed.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true"]
    command += ["--server.address=127.0.0.1", f"--server.port={port}", "--browser.gatherUsageStats=false"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if not _answers(server, f"{url}/_stcore/health", patience):
                log.seek(0)
                raise RuntimeError(f"{script} was not served:\n{log.read().decode(errors='replace')}")
            yield url
        finally:
            _stop(server)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(server: subprocess.Popen[bytes], address: str, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:  # not listening yet
            pass
        time.sleep(0.1)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """SIGTERM first: the server's own exit is part of what the tests look at. Then whatever is left of its group."""
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, 9)
    server.wait(timeout=10)
