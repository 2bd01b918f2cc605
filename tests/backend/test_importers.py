"""Receipts, rollouts and bundles come in whole, once, or are refused in one sentence."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trees

from backend import importers
from backend.errors import UserError
from backend.exporters import export
from backend.importers import bundled, import_path
from backend.importers import reading as reading_module
from backend.shards import to_table, write_shard, write_table
from backend.store import Store

CAMPAIGNS = {
    "campaign-2026-06-10/k8.json": (160, 32, 8, False),
    "campaign-2026-06-10/smoke.json": (16, 8, 2, True),
    "campaign-2026-06-10/temp0.json": (784, 159, 1, True),
    "campaign-2026-06-11/batchinv.json": (395, 80, 4, True),
    "campaign-2026-06-11/k8.json": (783, 159, 8, True),
    "campaign-2026-06-11/primary.json": (784, 160, 4, True),
    "campaign-2026-06-11/screened.json": (783, 159, 4, True),
}
"""Of each published receipt: pivots, rollouts with one, k, final."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as opened:
        yield opened


def receipt_pivot(**changed: Any) -> dict[str, Any]:
    return {
        "problem_id": 7,
        "rollout": 0,
        "abs_pos": 120,
        "gen_index": 20,
        "margin": 0.25,
        "rollout_correct": 1,
        "A_exact1": 0.5,
        "A_exact2": -0.25,
        "A_refeed": 0.0,
        "cache_ok_exact1": True,
        "cache_ok_exact2": False,
        "greedy_divergence_exact2": False,
        "greedy_first_logprob_delta_exact2": 0.0,
        "greedy_divergence_refeed": True,
        "greedy_first_logprob_delta_refeed": 0.0015,
    } | changed


def receipt(*pivots: dict[str, Any], **changed: Any) -> dict[str, Any]:
    violations = {"problem_id": 7, "pivots": 1, "cache_violations": {"exact1": 0, "exact2": 3}, "total_seconds": 9.5}
    return {
        "experiment": "an experiment",
        "config": {
            "model": "some/model",
            "k": 4,
            "temperature": 0.7,
            "margin_lt": 1.0,
            "cont_temp": None,
            "problems": 1,
        },
        "final": True,
        "per_problem": [violations],
        "pivots": list(pivots) or [receipt_pivot()],
    } | changed


def candidate(token: int, logprob: float | None) -> dict[str, Any]:
    return {"token_id": token, "text": f"<{token}>", "logprob": logprob}


def rollout_file(**changed: Any) -> dict[str, Any]:
    certain = [candidate(5, -19.5), candidate(6, -19.75), candidate(4, 0.0)]
    return {
        "version": 1,
        "model_id": "some/model",
        "prompt_token_ids": [1, 2, 3],
        "sampling": {"temperature": 0.6, "top_p": 0.95, "seed": 7, "n": 8},
        "tokens": [
            {"token_id": 4, "text": "é", "logprob": 0.0, "topk": certain},
            {"token_id": 5, "text": "b", "logprob": -0.5, "topk": [candidate(5, -0.5), candidate(6, -1.0)]},
        ],
    } | changed


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def everything(store: Store) -> Any:
    return [(row, list(store.tables(row["campaign"]))) for row in store.campaigns()]


# Receipts


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_published_receipt_comes_in_with_every_credit(store: Store, shared: Path, name: str) -> None:
    path = shared / "receipts" / name
    pivots, rollouts, k, final = CAMPAIGNS[name]
    (imported,) = import_path(store, path)
    assert (imported["path"], imported["pivots"], imported["rollouts"]) == (str(path), pivots, rollouts)
    row = store.campaign(imported["campaign"])
    assert (row["k"], row["final"], row["model"]) == (k, final, "Qwen/Qwen2.5-7B-Instruct")
    assert [row[key] for key in ("engine", "dtype", "batch_invariant", "attention_backend")] == [None] * 4

    frame = store.credits([imported["campaign"]])
    assert frame["complete"].all()
    keys = zip(frame["problem"], frame["rollout"], frame["position"], strict=True)
    stored = dict(zip(keys, frame[["exact", "replica", "refeed"]].itertuples(index=False, name=None), strict=True))
    for pivot in json.loads(path.read_text())["pivots"]:
        found = stored.pop((str(pivot["problem_id"]), pivot["rollout"], pivot["abs_pos"]))
        expected = tuple(Fraction(pivot[f"A_{name}"]) * k for name in ("exact1", "exact2", "refeed"))
        assert found == expected, pivot
    assert not stored


def test_a_receipt_keeps_what_it_says_and_invents_nothing(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "bf16-batch-invariant-vllm.json", receipt())
    (imported,) = import_path(store, path)
    row = store.campaign(imported["campaign"])
    assert [row[key] for key in ("engine", "dtype", "batch_invariant")] == [None] * 3
    assert (row["name"], row["origin"], row["state"]) == ("bf16-batch-invariant-vllm", "import", "imported")
    settings = row["settings"]
    assert settings["stated"]["experiment"] == "an experiment"
    assert {key: settings[key] for key in ("margin_below", "temperature", "continuation_temperature", "problems")} == {
        "margin_below": 1.0,
        "temperature": 0.7,
        "continuation_temperature": None,
        "problems": {"count": 1},
    }
    (problem,) = store.problems(imported["campaign"])
    assert problem["stated"]["cache_violations"] == {"exact1": 0, "exact2": 3}
    assert (problem["question"], problem["source"], problem["seconds"]) == (None, None, 9.5)
    rollout = store.rollout(imported["campaign"], "7", 0)
    assert (rollout.correct, rollout.ids, rollout.seed, rollout.finish_reason) == (True, [], None, None)
    (pivot,) = rollout.pivots
    assert (pivot.position, pivot.margin, pivot.actual, pivot.planned) == (120, 0.25, None, True)
    exact, replica, refeed = pivot.measurements
    assert [(one.numerator, one.n_actual, one.n_alternative, one.k) for one in pivot.measurements] == [
        (2, None, None, 4),
        (-1, None, None, 4),
        (0, None, None, 4),
    ]
    assert [one.cache_misses for one in pivot.measurements] == [0, 1, None]
    assert [one.probe_diverged for one in pivot.measurements] == [None, False, True]
    assert [one.probe_delta for one in pivot.measurements] == [None, 0.0, 0.0015]
    assert {one.run for one in (exact, replica, refeed)} == {"campaign"}


def test_the_older_generation_has_no_cache_readings(store: Store, tmp_path: Path) -> None:
    older = {key: value for key, value in receipt_pivot().items() if not key.startswith("cache_ok")}
    (imported,) = import_path(store, write(tmp_path / "a.json", receipt(older)))
    (pivot,) = store.rollout(imported["campaign"], "7", 0).pivots
    assert [one.cache_misses for one in pivot.measurements] == [None] * 3


def test_a_null_credit_is_an_incomplete_pivot(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", receipt(receipt_pivot(A_refeed=None), receipt_pivot(abs_pos=121)))
    (imported,) = import_path(store, path)
    assert store.credits([imported["campaign"]])["complete"].tolist() == [False, True]


@pytest.mark.parametrize("k", [3, 7, 10, 12])
def test_credits_are_exact_at_any_k(store: Store, tmp_path: Path, k: int) -> None:
    # As a quotient and as a difference of two quotients: 3/10 − 1/10 is not 2/10 in doubles.
    credits = [j / k for j in range(-k, k + 1)] + [a / k - b / k for a in range(k + 1) for b in range(k + 1)]
    expected = [*range(-k, k + 1)] + [a - b for a in range(k + 1) for b in range(k + 1)]
    pivots = [receipt_pivot(abs_pos=100 + i, A_exact1=credit) for i, credit in enumerate(credits)]
    data = receipt(*pivots)
    data["config"]["k"] = k
    for pivot in pivots:
        pivot |= {"A_exact2": 0.0, "A_refeed": -1}
    (imported,) = import_path(store, write(tmp_path / "a.json", data))
    assert store.credits([imported["campaign"]]).sort_values("position")["exact"].tolist() == expected


def test_the_same_file_adds_nothing_under_any_name(store: Store, tmp_path: Path) -> None:
    first = import_path(store, write(tmp_path / "a.json", receipt()))
    before = everything(store)
    again = import_path(store, write(tmp_path / "b.json", receipt()))
    assert again == [{**first[0], "path": str(tmp_path / "b.json")}]
    assert everything(store) == before


def test_two_files_of_one_name_can_be_told_apart(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (one,) = import_path(store, write(tmp_path / "k8.json", receipt()))
    (two,) = import_path(store, write(tmp_path / "other" / "k8.json", receipt(final=False)))
    assert store.find_campaign("k8") == one["campaign"] != two["campaign"]
    assert store.find_campaign(f"k8 ({two['campaign'][:6]})") == two["campaign"]


def test_a_folder_brings_in_all_its_files(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with pytest.raises(UserError, match="without JSON or Parquet"):
        import_path(store, folder)
    write(folder / "a.json", receipt())
    write(folder / "b.json", rollout_file())
    (folder / "notes.txt").write_text("x")
    assert [(one["pivots"], one["rollouts"]) for one in import_path(store, folder)] == [(1, 1), (0, 1)]


def pivot_change(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["pivots"].append(receipt_pivot(**{"abs_pos": 130} | changed))


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def remove(data: Any) -> None:
        for part in path[:-1]:
            data = data[part]
        del data[path[-1]]

    return remove


def with_value(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def put(data: Any) -> None:
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = value

    return put


def lacking_one(name: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["pivots"].append(receipt_pivot(abs_pos=130))
        del data["pivots"][1][name]

    return change


@pytest.mark.parametrize(
    ("change", "place", "right"),
    [
        (without("config"), "config", "missing"),
        (without("config", "k"), "config.k", "missing"),
        (without("config", "model"), "config.model", "missing"),
        (with_value(0, "config", "k"), "config.k is 0", "greater than or equal to 1"),
        (with_value("4", "config", "k"), "config.k is '4'", "valid integer"),
        (with_value([], "pivots"), "pivots is []", "at least 1"),
        (with_value({}, "pivots"), "pivots is {}", "valid list"),
        (with_value("yes", "final"), "final is 'yes'", "valid boolean"),
        (lacking_one("A_refeed"), "pivots[1].A_refeed", "missing"),
        (lacking_one("problem_id"), "pivots[1].problem_id", "missing"),
        (lacking_one("margin"), "pivots[1].margin", "missing"),
        (lacking_one("greedy_divergence_refeed"), "pivots[1].greedy_divergence_refeed", "missing"),
        (pivot_change(A_exact1="0.5"), "pivots[1].A_exact1 is '0.5'", "valid number"),
        (pivot_change(A_exact1=True), "pivots[1].A_exact1 is True", "valid number"),
        (pivot_change(A_exact2=0.3), "pivots[1].A_exact2 is 0.3", "multiple of 1/4"),
        (pivot_change(A_exact2=0.2501), "pivots[1].A_exact2", "multiple of 1/4"),
        (pivot_change(A_refeed=1.25), "pivots[1].A_refeed is 1.25", "less than or equal to 1"),
        (pivot_change(A_refeed=-1.25), "pivots[1].A_refeed is -1.25", "greater than or equal to -1"),
        (pivot_change(A_refeed=math.nan), "pivots[1].A_refeed is nan", "finite number"),
        (pivot_change(A_refeed=math.inf), "pivots[1].A_refeed is inf", "finite number"),
        (pivot_change(margin=math.nan), "pivots[1].margin is nan", "finite number"),
        (pivot_change(rollout=-1), "pivots[1].rollout is -1", "greater than or equal to 0"),
        (pivot_change(rollout=0.5), "pivots[1].rollout is 0.5", "valid integer"),
        (pivot_change(abs_pos=2**40), "pivots[1].abs_pos", "less than"),
        (pivot_change(abs_pos=120), "pivots[1] is problem 7, rollout 0, abs_pos 120", "a second time"),
        (pivot_change(gen_index=200), "pivots[1].gen_index is 200", "below abs_pos"),
        (pivot_change(rollout_correct=0), "rollout_correct of problem 7, rollout 0", "the same in all"),
        (pivot_change(rollout_correct=2), "pivots[1].rollout_correct is 2", "0 or 1"),
        (pivot_change(greedy_first_logprob_delta_refeed=-0.1), "pivots[1].greedy_first", "greater than or equal to 0"),
    ],
)
def test_a_malformed_receipt_is_refused_whole(
    store: Store, tmp_path: Path, change: Callable[[dict[str, Any]], None], place: str, right: str
) -> None:
    data = copy.deepcopy(receipt())
    change(data)
    refused(store, write(tmp_path / "a.json", data), place, right)


def refused(store: Store, path: Path, *parts: str) -> None:
    before = everything(store)
    with pytest.raises(UserError) as caught:
        import_path(store, path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    for part in parts:
        assert part in text, text
    assert everything(store) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"not json", "is not JSON"),
        (b'{"pivots": [', "is not JSON"),
        (b"[1, 2]", "holds a JSON list"),
        (b'"text"', "holds a JSON string"),
        (b"{}", "neither `pivots` (a receipt) nor `tokens` (a rollout)"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"PAR1 and then nothing", "not a whole Parquet file"),
    ],
)
def test_a_file_of_another_kind_is_refused(store: Store, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    refused(store, path, reason)


def test_a_huge_or_missing_file_is_refused_unread(store: Store, tmp_path: Path) -> None:
    for name in ("a.json", "a.parquet"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(importers.MAX_BYTES + 1)
        refused(store, path, "at most 1,073,741,824")
    refused(store, tmp_path / "none.json", "cannot be read")


def test_the_limit_is_on_the_bytes(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.json", receipt())
    monkeypatch.setattr(reading_module, "MAX_BYTES", path.stat().st_size)
    assert import_path(store, path)


# Rollouts


def test_a_rollout_keeps_its_top_k_in_the_order_of_the_file(store: Store, tmp_path: Path) -> None:
    data = rollout_file()
    data["tokens"][1]["topk"] += [candidate(8, None), candidate(9, -math.inf), candidate(10, math.nan)]
    (imported,) = import_path(store, write(tmp_path / "a.json", data))
    row = store.campaign(imported["campaign"])
    assert (row["model"], row["k"], row["passes"], row["engine"]) == ("some/model", None, [], None)
    assert (row["settings"]["temperature"], row["settings"]["stated"]["sampling"]["n"]) == (0.6, 8)
    (problem,) = store.problems(imported["campaign"])
    rollout = store.rollout(imported["campaign"], problem["problem"], 0)
    assert (rollout.prompt_ids, rollout.ids, rollout.logprobs) == ([1, 2, 3], [4, 5], [0.0, -0.5])
    assert rollout.topk_ids == [[5, 6, 4], [5, 6, 8, 9, 10]]
    assert rollout.topk_logprobs[0] == [-19.5, -19.75, 0.0]
    assert repr(rollout.topk_logprobs[1]) == "[-0.5, -1.0, nan, -inf, nan]"
    assert (rollout.answer, rollout.correct, rollout.finish_reason) == (None, None, None)
    texts = store.token_bytes(imported["campaign"], [1, 4, 5, 6])
    # The text of a prompt's token is not in the file.
    assert texts == {4: "é".encode(), 5: b"b", 6: b"<6>"}


@pytest.mark.parametrize("number", range(4))
def test_a_published_rollout_comes_in(store: Store, shared: Path, number: int) -> None:
    path = shared / "receipts" / "rollouts" / f"rollout-{number}.json"
    data = json.loads(path.read_text())
    (imported,) = import_path(store, path)
    (problem,) = store.problems(imported["campaign"])
    rollout = store.rollout(imported["campaign"], problem["problem"], 0)
    assert rollout.ids == [token["token_id"] for token in data["tokens"]]
    assert rollout.topk_logprobs == [[one["logprob"] for one in token["topk"]] for token in data["tokens"]]
    texts = store.token_bytes(imported["campaign"], rollout.ids)
    assert [texts[token].decode() for token in rollout.ids] == [token["text"] for token in data["tokens"]]


@pytest.mark.parametrize(
    ("change", "place", "right"),
    [
        (without("model_id"), "model_id", "missing"),
        (without("prompt_token_ids"), "prompt_token_ids", "missing"),
        (with_value([], "prompt_token_ids"), "prompt_token_ids is []", "at least 1"),
        (with_value([], "tokens"), "tokens is []", "at least 1"),
        (without("tokens", 1, "topk"), "tokens[1].topk", "missing"),
        (with_value("7", "tokens", 1, "token_id"), "tokens[1].token_id is '7'", "valid integer"),
        (with_value(-7, "tokens", 1, "token_id"), "tokens[1].token_id is -7", "greater than or equal to 0"),
        (with_value(math.nan, "tokens", 1, "logprob"), "tokens[1].logprob", "at most 0"),
        (with_value(0.5, "tokens", 1, "logprob"), "tokens[1].logprob", "at most 0"),
        (with_value("x", "tokens", 0, "topk", 2, "logprob"), "tokens[0].topk[2].logprob is 'x'", "valid number"),
        (with_value(-1, "sampling", "temperature"), "sampling.temperature is -1", "greater than or equal to 0"),
    ],
)
def test_a_malformed_rollout_is_refused_whole(
    store: Store, tmp_path: Path, change: Callable[[dict[str, Any]], None], place: str, right: str
) -> None:
    data = copy.deepcopy(rollout_file())
    change(data)
    refused(store, write(tmp_path / "a.json", data), place, right)


# Bundles


def test_a_shard_of_a_run_is_no_export(store: Store, tmp_path: Path) -> None:
    refused(store, write_shard(tmp_path, trees.record()), "one problem's shard")


@pytest.mark.parametrize(("state", "final"), [("done", True), ("interrupted", False), ("live", None)])
def test_an_export_says_whether_its_campaign_was_done(
    store: Store, tmp_path: Path, state: str, final: bool | None
) -> None:
    with Store(tmp_path / "source.duckdb") as source:
        source.add_campaign(trees.campaign(state=state), [to_table([trees.record("a")])], "test")
        (path,) = export(source, "c1", "parquet", tmp_path / "out")
    (imported,) = import_path(store, path)
    assert store.campaign(imported["campaign"])["final"] is final


def test_a_bundle_with_a_wrong_footer_or_rows_is_refused(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "source.duckdb") as source:
        source.add_campaign(trees.campaign(), [to_table([trees.record("a")])], "test")
        (good,) = export(source, "c1", "parquet", tmp_path / "out")
        facts = {key: source.campaign("c1")[key] for key in ("name", "model", "engine", "dtype", "k", "settings")}
    facts |= {"batch_invariant": None, "attention_backend": None, "passes": ["exact"], "final": None}
    path = tmp_path / "bad.parquet"
    write_table(path, [to_table([trees.record("a")])], {"campaign": {**facts, "k": "4"}, "engines": {}})
    refused(store, path, "campaign.k is '4'")
    write_table(path, [to_table([trees.record("a")])], {"campaign": {**facts, "passes": ["guess"]}, "engines": {}})
    refused(store, path, "campaign.passes[0] is 'guess'")
    write_table(path, [], {"campaign": facts, "engines": {}})
    refused(store, path, "holds no problem")
    write_table(
        path, [to_table([trees.record("a")]), to_table([trees.record("a")])], {"campaign": facts, "engines": {}}
    )
    refused(store, path, "holds a problem twice")
    broken = trees.record("b", rollouts=[trees.rollout(), trees.rollout()])
    write_table(path, [to_table([trees.record("a")]), to_table([broken])], {"campaign": facts, "engines": {}})
    refused(store, path, "problem b, rollout 0 occurs twice")
    content = bytearray(good.read_bytes())
    column = pq.ParquetFile(good).metadata.row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # the last byte of the problems' names
    path.write_bytes(content)
    refused(store, path, "damaged")


def test_bundled_campaigns_come_in_once_and_stay_away_when_removed(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "source.duckdb") as source:
        source.add_campaign(trees.campaign(name="demo", final=True), [to_table([trees.record("a")])], "test")
        (path,) = export(source, "demo", "parquet", tmp_path / "demo")
    assert bundled.waiting(store, tmp_path / "demo") == [path]
    campaign = bundled.take_in(store, path)
    assert bundled.called(path) == {campaign, "demo"}
    row = store.campaign("demo")
    assert (row["campaign"], row["bundled"], row["origin"], row["state"]) == (campaign, True, "bundled", "done")
    assert store.record(row["campaign"], "a") == trees.record("a")
    assert bundled.waiting(store, tmp_path / "demo") == []
    store.remove_campaign("demo")
    assert bundled.waiting(store, tmp_path / "demo") == []
    assert store.campaigns() == []
    # By hand it may come back, as anything else that is imported.
    (imported,) = import_path(store, path)
    assert store.campaign(imported["campaign"])["bundled"] is False


def shipped(folder: Path, name: str, *problems: str) -> Path:
    """A bundle of a campaign of these problems, under the file name that it always has."""
    with Store(folder / f"source-{len(problems)}.duckdb") as source:
        tables = [to_table([trees.record(problem)]) for problem in problems]
        source.add_campaign(trees.campaign(name=name), tables, "test")
        (path,) = export(source, name, "parquet", folder / "demo")
    return path.replace(folder / "demo" / "demo.parquet")


def test_a_newer_bundle_takes_the_place_of_the_older(store: Store, tmp_path: Path) -> None:
    older = bundled.take_in(store, shipped(tmp_path, "demo", "a"))
    path = shipped(tmp_path, "demo", "a", "b")
    assert bundled.waiting(store, tmp_path / "demo") == [path]
    newer = bundled.take_in(store, path)
    assert newer != older
    assert [(row["campaign"], row["name"], row["problems"]) for row in store.campaigns()] == [(newer, "demo", 2)]
    assert bundled.waiting(store, tmp_path / "demo") == []
    store.remove_campaign("demo")
    shipped(tmp_path, "demo", "a", "b", "c")
    assert bundled.waiting(store, tmp_path / "demo") == []  # removed is removed


def test_a_newer_bundle_leaves_what_a_reader_replayed(store: Store, tmp_path: Path) -> None:
    older = bundled.take_in(store, shipped(tmp_path, "demo", "a"))
    assert older is not None
    record = trees.record("a")
    pivot = record.rollouts[0].pivots[0]
    replayed = replace(pivot, measurements=[replace(one, run="replay-1") for one in pivot.measurements])
    store.ingest_record(older, replace(record, rollouts=[replace(record.rollouts[0], pivots=[replayed])]))
    newer = bundled.take_in(store, shipped(tmp_path, "demo", "a", "b"))
    assert newer is not None
    names = {row["campaign"]: row["name"] for row in store.campaigns()}
    assert names == {older: "demo", newer: f"demo ({newer[:6]})"}
    assert bundled.waiting(store, tmp_path / "demo") == []


def test_a_bundled_campaign_leaves_a_name_that_is_taken(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "source.duckdb") as source:
        source.add_campaign(trees.campaign(name="small"), [to_table([trees.record("a")])], "test")
        (path,) = export(source, "small", "parquet", tmp_path / "demo")
    store.ensure_campaign(trees.campaign(name="small"))
    campaign = bundled.take_in(store, path)
    assert campaign is not None
    assert store.find_campaign("small") == "c1"
    assert store.campaign(campaign)["name"] == f"small ({campaign[:6]})"


def test_no_bundled_folder_is_no_bundled_campaign(store: Store, tmp_path: Path) -> None:
    assert bundled.waiting(store, tmp_path / "none") == []


def test_a_bundle_that_was_imported_before_is_not_added_again(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "source.duckdb") as source:
        source.add_campaign(trees.campaign(name="demo"), [to_table([trees.record("a")])], "test")
        (path,) = export(source, "demo", "parquet", tmp_path / "demo")
    (imported,) = import_path(store, path)
    assert bundled.take_in(store, path) is None
    assert bundled.waiting(store, tmp_path / "demo") == []
    assert [row["campaign"] for row in store.campaigns()] == [imported["campaign"]]
