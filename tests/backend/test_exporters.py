"""What goes out comes in again row for row, and nothing half-written is left."""

from __future__ import annotations

import csv
import json
import math
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trees

from backend import exporters
from backend.errors import UserError, WorkFailed
from backend.exporters import export
from backend.importers import import_path
from backend.records import STANDARD_PASSES, ProblemRecord
from backend.shards import to_table
from backend.store import Store


def records() -> list[ProblemRecord]:
    replayed = [trees.measurement(name, run="replay-1", arms=(0, 2), engine="other") for name in STANDARD_PASSES]
    first = trees.pivot(2, measurements=[*trees.pivot().measurements, *replayed])
    clicked = trees.pivot(4, planned=False, measurements=replayed)
    incomplete = trees.pivot(
        3, measurements=[trees.measurement(), trees.measurement("replica", n_actual=None, numerator=None)]
    )
    return [
        trees.record("2", rollouts=[trees.rollout(pivots=[first, incomplete, clicked]), trees.rollout(1)]),
        trees.record("13", stated='{"cache_violations": {"exact1": 0}}'),
        trees.record("failed", state="failed", error="out of memory", rollouts=[], tokens=[]),
        trees.record("screened", state="screened_out", rollouts=[trees.rollout(pivots=[])], tokens=trees.tokens(5)),
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as opened:
        opened.add_campaign(trees.campaign(), [to_table(records())], "test", {"other": '{"engine": "vllm"}'})
        yield opened


def everything(store: Store, campaign: str) -> list[ProblemRecord]:
    return [store.record(campaign, row["problem"]) for row in store.problems(campaign)]


def test_a_bundle_imports_again_row_for_row(store: Store, tmp_path: Path) -> None:
    (path,) = export(store, "small", "parquet", tmp_path / "out")
    with Store(tmp_path / "other.duckdb") as other:
        (imported,) = import_path(other, path)
        campaign = imported["campaign"]
        assert everything(other, campaign) == everything(store, "c1") == records()
        assert other.engines(campaign) == store.engines("c1")
        assert {"other", trees.ENGINE} == set(other.engines(campaign))
        mine, theirs = store.campaign("c1"), other.campaign(campaign)
        differing = {key for key in mine if mine[key] != theirs[key]}
        assert differing - {"created"} == {"campaign", "state", "origin", "final"}
        assert (mine["state"], mine["final"], theirs["final"]) == ("running", None, False)
        # An export of the import is the same file, so it is the same campaign.
        (again,) = export(other, campaign, "parquet", tmp_path / "again")
        assert again.read_bytes() == path.read_bytes()
        assert import_path(other, again)[0]["campaign"] == campaign
        assert len(other.campaigns()) == 1


def test_an_export_can_come_back_into_its_own_store(store: Store, tmp_path: Path) -> None:
    (path,) = export(store, "c1", "parquet", tmp_path)
    (imported,) = import_path(store, path)
    assert imported["campaign"] != "c1"
    assert everything(store, imported["campaign"]) == everything(store, "c1")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_is_a_file_a_table_with_lists_as_json(store: Store, tmp_path: Path) -> None:
    paths = {path.stem.rsplit("-", 1)[1]: path for path in export(store, "c1", "csv", tmp_path / "out")}
    assert set(paths) == {"problem", "rollout", "pivot", "measurement", "continuation", "token"}
    assert [row["problem"] for row in rows(paths["problem"])] == ["13", "2", "failed", "screened"]
    first = rows(paths["rollout"])[0]
    expected = trees.rollout()
    assert json.loads(first["prompt_ids"]) == expected.prompt_ids
    assert repr(json.loads(first["logprobs"])) == repr(expected.logprobs)
    assert repr(json.loads(first["topk_logprobs"])) == repr(expected.topk_logprobs)
    assert json.loads(first["topk_ids"]) == expected.topk_ids
    measured = rows(paths["measurement"])
    stored = [one for r in records() for o in r.rollouts for p in o.pivots for one in p.measurements]
    assert len(measured) == len(stored)
    assert sum(row["numerator"] == "" for row in measured) == 1
    assert "pivot_id" not in measured[0]
    assert rows(paths["token"])[0]["bytes"] == "E201"
    assert len(rows(paths["continuation"])) == 6 * len(stored)


def test_lists_of_numbers_that_json_lacks(tmp_path: Path) -> None:
    odd = replace(trees.rollout(), topk_logprobs=[[math.nan, -math.inf], [-0.0], []], pivots=[])
    with Store(tmp_path / "store.duckdb") as store:
        store.add_campaign(trees.campaign(), [to_table([trees.record(rollouts=[odd])])], "test")
        paths = export(store, "c1", "csv", tmp_path)
    (row,) = rows(next(path for path in paths if path.stem.endswith("-rollout")))
    assert repr(json.loads(row["topk_logprobs"])) == repr(odd.topk_logprobs)


def test_a_receipt_reads_back_as_the_same_credits(store: Store, tmp_path: Path) -> None:
    (path,) = export(store, "c1", "receipt", tmp_path / "out")
    document = json.loads(path.read_text())
    assert document["config"]["k"] == 2
    assert document["final"] is False
    assert document["pivots"][0] == {
        "problem_id": 2,
        "rollout": 0,
        "abs_pos": 2,
        "gen_index": 0,
        "margin": trees.pivot(2).margin,
        "rollout_correct": 1,
        "A_exact1": 0.5,
        "A_exact2": 0.5,
        "A_refeed": 0.5,
        "cache_ok_exact1": True,
        "cache_ok_exact2": True,
        "greedy_divergence_exact2": False,
        "greedy_first_logprob_delta_exact2": 0.125,
        "greedy_divergence_refeed": False,
        "greedy_first_logprob_delta_refeed": 0.125,
    }
    (imported,) = import_path(store, path)
    shared = ["problem", "rollout", "position", "margin", "k", "complete", "exact", "replica", "refeed"]
    mine, theirs = (
        store.credits([campaign]).astype({"problem": str}).sort_values(["problem", "rollout", "position"])[shared]
        for campaign in ("c1", imported["campaign"])
    )
    assert mine.to_dict("records") == theirs.to_dict("records")


@pytest.mark.parametrize(
    "name",
    ["campaign-2026-06-10/k8", "campaign-2026-06-10/temp0", "campaign-2026-06-11/k8", "campaign-2026-06-11/primary"],
)
def test_a_published_receipt_goes_out_as_it_came_in(tmp_path: Path, shared: Path, name: str) -> None:
    original = json.loads((shared / "receipts" / f"{name}.json").read_text())
    with Store(tmp_path / "store.duckdb") as store:
        (imported,) = import_path(store, shared / "receipts" / f"{name}.json")
        (path,) = export(store, imported["campaign"], "receipt", tmp_path)
    written = json.loads(path.read_text())
    for pivot in original["pivots"]:
        # The first tokens of the probes are not kept, only what follows from them.
        for probe in ("greedy_first_exact1", "greedy_first_exact2", "greedy_first_refeed"):
            pivot.pop(probe, None)

    def key(pivot: dict[str, Any]) -> tuple[int, int, int]:
        return pivot["problem_id"], pivot["rollout"], pivot["abs_pos"]

    original["pivots"].sort(key=key)
    assert written.keys() == original.keys()
    for part in original:
        assert written[part] == original[part], part


def test_a_campaign_that_makes_no_receipt_says_why(store: Store, tmp_path: Path) -> None:
    store.add_campaign(trees.campaign("c2", name="two passes", passes=("exact", "refeed")), [], "test")
    store.add_campaign(trees.campaign("c3", name="no pivots"), [], "test")
    with pytest.raises(UserError, match="lacks the pass replica"):
        export(store, "c2", "receipt", tmp_path / "out")
    with pytest.raises(UserError, match="has no pivots"):
        export(store, "c3", "receipt", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_campaigns_and_formats_are_sentences(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean small"):
        export(store, "smal", "parquet", tmp_path / "out")
    with pytest.raises(UserError, match="the formats are parquet, csv, receipt, html"):
        export(store, "small", "xlsx", tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"):
        export(store, "small", "parquet", tmp_path / "file" / "out")


def test_a_name_cannot_lead_out_of_the_folder(store: Store, tmp_path: Path) -> None:
    store.add_campaign(trees.campaign("c2", name="../../etc/passwd"), [to_table([trees.record()])], "test")
    (path,) = export(store, "c2", "parquet", tmp_path / "out")
    assert path.parent == tmp_path / "out"


def test_nothing_half_written_is_left(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = export(store, "small", "parquet", tmp_path / "out")
    before = path.read_bytes()

    def failing(*_: Any) -> Iterator[Any]:
        yield to_table([trees.record()])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "tables", failing)
    with pytest.raises(WorkFailed, match="disk is full"):
        export(store, "small", "parquet", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_full_disk_leaves_no_half_file(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    try:
        for format in ("csv", "parquet"):
            with pytest.raises(WorkFailed, match=f"{folder}/small.* the disk is full"):
                export(store, "small", format, folder)
            for file in folder.iterdir():
                assert file.name.startswith("small-")
                assert file.read_text().endswith("\n")
                file.unlink()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_every_format_has_a_writer() -> None:
    assert list(exporters.FORMATS) == ["parquet", "csv", "receipt", "html"]
