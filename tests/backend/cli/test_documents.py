"""What each command prints with `--json`: the keys that scripts rely on, and the numbers behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.store import Store
from tests.backend.cli.terminal import call, campaign_file, document, refusal
from tests.conftest import ROOT

CAMPAIGN_KEYS = (
    "campaign name model engine dtype k batch_invariant attention_backend passes problems rollouts pivots bundled state"
)
REPORT_KEYS = (
    "campaigns model engine k pivots incomplete problems eligible clusters refeed replica excess_pp excess_pp_ci95 "
    "mean_excess_equal_weight t_equal_weight t_cr1 t_jackknife sign_flip_p conditioned_on_exact bias jaccard probe "
    "bootstrap checks"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one finished campaign."""
    folder = tmp_path_factory.mktemp("documents")
    store = folder / "a.duckdb"
    ran = document("run", campaign_file(folder), "--store", store)
    assert (ran["state"], ran["done"], ran["ingested"]) == ("done", 2, True)
    return store


def test_campaigns(store: Path) -> None:
    listed = document("campaigns", "--store", store)
    (row,) = listed
    assert set(CAMPAIGN_KEYS.split()) <= row.keys()
    assert (row["name"], row["problems"], row["rollouts"], row["state"]) == ("small", 2, 4, "done")


def test_a_new_store_lists_the_campaigns_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIVOTSCOPE_BUNDLED")
    store = tmp_path / "b.duckdb"
    listed = document("campaigns", "--store", store)
    assert len(listed) == len(list((ROOT / "data" / "demo").glob("*.parquet")))
    assert all(row["bundled"] and row["problems"] and row["pivots"] for row in listed)
    gone = listed[0]["campaign"]
    assert document("remove", listed[0]["name"], "--store", store) == {"removed": gone}
    assert document("campaigns", "--store", store) == listed[1:]


def test_report(store: Path) -> None:
    (report,) = document("report", "small", "--threshold", "0.3", "--store", store)
    assert set(REPORT_KEYS.split()) <= report.keys()
    assert 0.3 in [row["threshold"] for row in report["jaccard"]]
    assert {check["name"]: check["status"] for check in report["checks"]}["exact_cache_hits"] == "pass"
    pooled = document("report", "small", "--pool", "--store", store)
    assert pooled["pivots"] == report["pivots"]
    assert "Flips against exact" in call("report", "small", "--store", store).stdout


def test_replay_of_any_position(store: Path) -> None:
    where = ["--campaign", "small", "--problem", "sums-0000", "--rollout", 0, "--store", store]
    outside = refusal("replay", *where, "--position", 0)
    first = int(outside.partition("its generated tokens are at ")[2].partition(" ")[0])
    found = document("replay", *where, "--position", first + 9, "--k", 3, "--max-tokens", 20)
    assert (found["position"], found["k"], list(found["passes"])) == (first + 9, 3, ["exact", "replica", "refeed"])
    for measured in found["passes"].values():
        assert {"n_actual", "n_alternative", "credit", "provenance", "seconds", "output_sha256"} <= measured.keys()
        assert measured["provenance"] == "rebuilt, verified"
    assert len({measured["output_sha256"] for measured in found["passes"].values()}) == 1
    assert {check["name"] for check in found["checks"]} >= {"rows", "exact_logprobs_bitwise", "same_seeds"}
    other = document("replay", *where, "--position", first + 9, "--alternative", 30, "--passes", "exact")
    assert other["alternative"] == 30 != found["alternative"]
    here = refusal("replay", *where, "--position", first + 9, "--alternative", found["actual"])
    assert "is the one that stands there; put another one in its place" in here
    # Only a loaded model knows its vocabulary.
    nothing = call("replay", *where, "--position", first + 9, "--alternative", 99_999_999_999)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.splitlines()[-1] == (
        "error: token 99999999999 stands for no text of toy; give an id of its vocabulary."
    )
    two = document("replay", *where, "--position", first + 9, "--passes", "serial,exact")
    assert list(two["passes"]) == ["exact", "serial"]
    assert "rollout 9" in refusal("replay", *where[:5], 9, *where[6:], "--position", 200)


def test_export_import_remove(store: Path, tmp_path: Path) -> None:
    out = document("export", "small", "--format", "parquet", "--out", tmp_path, "--store", store)
    (file,) = out["files"]
    other = tmp_path / "b.duckdb"
    (row,) = document("import", file, "--store", other)
    assert (row["path"], row["pivots"] > 0, row["rollouts"]) == (file, True, 4)
    assert document("import", file, "--store", other) == [row]
    assert "the formats are" in refusal("export", "small", "--format", "xml", "--out", tmp_path, "--store", store)
    assert document("remove", "small", "--store", other) == {"removed": row["campaign"]}
    assert document("campaigns", "--store", other) == []


def test_a_removed_run_stays_removed(tmp_path: Path) -> None:
    store, config = tmp_path / "a.duckdb", campaign_file(tmp_path)
    document("run", config, "--store", store)
    document("remove", "small", "--store", store)
    assert document("campaigns", "--store", store) == []
    assert document("run", config, "--store", store)["done"] == 2


def test_imported_receipts_have_no_transcript_to_replay(store: Path, shared: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.duckdb"
    files = [shared / "receipts" / "campaign-2026-06-10" / "smoke.json", shared / "receipts" / "rollouts"]
    imported = document("import", *files, "--store", other)
    assert [set(row) for row in imported] == [{"path", "campaign", "pivots", "rollouts"}] * 5
    where = ["--rollout", 0, "--position", 200, "--store", other]
    said = refusal("replay", "--campaign", "smoke", "--problem", 0, *where)
    assert "imported without its transcript, so it cannot be replayed" in said
    with Store(other) as opened:
        (problem,) = opened.problems(opened.find_campaign("rollout-0"))
    said = refusal("replay", "--campaign", "rollout-0", "--problem", problem["problem"], *where)
    assert "model Qwen/Qwen2.5-7B-Instruct is not on this disk; fetch it with" in said


def test_grade_and_audit(shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases" / "grading.jsonl").read_text(encoding="utf-8").splitlines()]
    for case in cases[:: len(cases) // 4]:
        found = document("grade", "--text", case["text"], "--gold", case["gold"])
        assert (set(found), found["correct"]) == ({"answer", "correct"}, case["correct"]), case["why"]
    oracle = json.loads((shared / "receipts" / "oracle.json").read_text(encoding="utf-8"))["rollout_audit"]
    counts = document("audit", *sorted((shared / "receipts" / "rollouts").glob("*.json")))
    keys = ("tokens", "zero_logprobs", "recorded_low_margin", "true_low_margin", "phantom_pivots", "ties")
    assert {key: counts[key] for key in keys} == {key: oracle[key] for key in keys}


def test_models() -> None:
    listed = document("models", "list")
    keys = {"name", "architecture", "parameters", "dtype", "sha256", "source", "path"}
    assert all(keys <= row.keys() for row in listed)
    assert "smollm2-135m" in [row["name"] for row in listed]


def test_doctor(tmp_path: Path) -> None:
    found = document("doctor", "--store", tmp_path / "a.duckdb")
    looked = {check["name"]: check["status"] for check in found["checks"]}
    assert found["ok"]
    expected = "python packages models processor gpu store memory disk"
    assert {*expected.split(), "engine transformers", "engine vllm", "browser tests"} <= looked.keys()
    (tmp_path / "b.duckdb").write_text("no store" * 1000, encoding="utf-8")
    done = call("doctor", "--store", tmp_path / "b.duckdb")
    assert done.returncode == 1
    assert "broken   store: " in done.stdout
    assert done.stdout.splitlines()[-1] == "Pivotscope does not work here yet: see store."
