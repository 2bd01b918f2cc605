"""vLLM's part of the tests, in the environment that vLLM needs: its own tests as a child, and one small campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, absent

pytestmark = pytest.mark.vllm

CAMPAIGN = """
name = "vllm on a cpu"
model = "smollm2-135m"
engine = "vllm"
problems = { set = "arithmetic", count = 2 }
rollouts = 2
k = 2
max_pivots_per_rollout = 1
max_rollout_tokens = 48
max_continuation_tokens = 24
"""


@pytest.fixture(scope="module")
def interpreter() -> Path:
    """The Python of the vLLM environment."""
    python = Path(os.environ.get("PIVOTSCOPE_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    if not python.exists():
        absent(f"there is no vLLM environment at {python}; `bash tests/run` makes it")
    return python


def test_the_engine_in_its_own_environment(interpreter: Path) -> None:
    command = [str(interpreter), "-m", "pytest", "--confcutdir", "tests/vllm", "tests/vllm", "-q", "--no-header"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    summary = [
        line for line in done.stdout.splitlines() if " passed" in line or " failed" in line or " skipped" in line
    ]
    print(f"vLLM environment: {summary[-1].strip('= ') if summary else 'no summary'}")
    assert done.returncode == 0, report[-6000:]


def test_a_small_campaign_goes_through_the_same_store_and_report(
    interpreter: Path, weights: Path, tmp_path: Path
) -> None:
    file, store = tmp_path / "campaign.toml", tmp_path / "store.duckdb"
    file.write_text(f'{CAMPAIGN}worker_python = "{interpreter}"\n', encoding="utf-8")

    def backend(*arguments: str) -> object:
        command = [sys.executable, "-m", "backend", *arguments, "--store", str(store), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    backend("run", str(file))
    (report,) = backend("report", "vllm on a cpu")  # type: ignore[misc]
    assert report["engine"] == "vllm"
    assert report["problems"] == 2
    assert report["incomplete"] == 0
    checks = {check["name"]: check["status"] for check in report["checks"]}
    for name in ("rows", "exact_cache_hits", "exact_logprobs_bitwise", "refeed_cold", "same_seeds", "same_settings"):
        assert checks[name] == "pass", f"{name}: {checks}"
