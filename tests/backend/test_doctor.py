"""What the doctor says of machines that lack something."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backend import doctor
from backend.doctor import Finding, examine


def found(store: Path) -> Mapping[str, Finding]:
    return {finding.name: finding for finding in examine(store)}


def test_this_machine_is_fit(tmp_path: Path) -> None:
    findings = examine(tmp_path / "a.duckdb")
    assert not [finding for finding in findings if finding.fatal]
    assert all(finding.advice for finding in findings if finding.status == "missing")


def test_missing_packages_are_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    (tmp_path / "requirements.txt").write_text(
        "no-such-package>=1\npytest>=999  # too new\nnumpy>=1\n-r more.txt\nelsewhere; sys_platform == 'win32'\n",
        encoding="utf-8",
    )
    findings = found(tmp_path / "a.duckdb")
    assert findings["package no-such-package"].fatal
    assert findings["package pytest"].status == "warning"
    assert findings["packages"].detail.startswith("numpy ")
    assert "package elsewhere" not in findings


def test_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _package: None)
    monkeypatch.delenv("PIVOTSCOPE_WORKER_PYTHON", raising=False)
    findings = found(tmp_path / "a.duckdb")
    assert findings["engine transformers"].detail == "torch and transformers not installed"
    assert findings["engine transformers"].fatal
    assert (findings["engine vllm"].status, findings["engine vllm"].fatal) == ("missing", False)
    monkeypatch.setenv("PIVOTSCOPE_WORKER_PYTHON", sys.executable)
    assert found(tmp_path / "a.duckdb")["engine vllm"].status == "broken"
    monkeypatch.setenv("PIVOTSCOPE_WORKER_PYTHON", str(tmp_path / "python"))
    assert "which holds no vllm" in found(tmp_path / "a.duckdb")["engine vllm"].detail


def test_nothing_to_run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PIVOTSCOPE_CHROMIUM", raising=False)
    monkeypatch.setenv("PIVOTSCOPE_MODELS", str(tmp_path))
    monkeypatch.setattr(doctor, "WORKER_MEMORY", 2**60)
    monkeypatch.setattr(doctor, "DISK", 2**60)
    findings = found(tmp_path / "none" / "a.duckdb")
    statuses = {name: findings[name].status for name in ("gpu", "models", "browser tests", "memory", "disk", "store")}
    assert statuses == {
        "gpu": "missing",
        "models": "missing",
        "browser tests": "missing",
        "memory": "warning",
        "disk": "warning",
        "store": "broken",
    }
    assert findings["store"].fatal


def test_a_look_that_fails_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no")

    monkeypatch.setattr(doctor, "_memory", broken)
    findings = found(tmp_path / "a.duckdb")
    assert findings["memory"].detail == "could not be looked at (OSError: no)"
    assert findings["disk"].status == "ok"


@pytest.mark.parametrize(("flags", "status"), [({"avx2"}, "warning"), ({"amx_bf16"}, "ok"), (set(), "ok")])
def test_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str], status: str) -> None:
    monkeypatch.setattr(doctor, "_processor_flags", lambda: flags)
    assert found(tmp_path / "a.duckdb")["processor"].status == status
