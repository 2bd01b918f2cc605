"""What can be set on the vLLM engine; nothing here needs vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.engines.vllm_engine import VllmEngine
from backend.engines.vllm_options import arguments, enter, environment, read_options
from backend.errors import UserError


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """An engine sets variables of its process; these tests share theirs with others."""
    saved = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attention_backed": "X"}, "unknown option `attention_backed` of the vllm engine; did you mean `attention_b"),
        ({"colour": 1}, "unknown option `colour` of the vllm engine; known ones are attention_backend, max_num_seqs"),
        ({"max_num_seqs": "8"}, "`max_num_seqs` is '8', but must be of type int"),
        ({"max_num_seqs": True}, "`max_num_seqs` is True, but must be of type int"),
        ({"block_size": 0}, "`block_size` is 0, but must be at least 1"),
        ({"gpu_memory_utilization": 1.5}, "`gpu_memory_utilization` must be above 0 and at most 1"),
        ({"enforce_eager": 1}, "`enforce_eager` is 1, but must be of type bool"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_options(options)
    assert str(caught.value).startswith(f"engine_options: {sentence}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_num_batched_tokens": 100}, "`max_num_batched_tokens` is 100, but one step must take a whole prefill"),
        ({"max_num_seqs": 7}, "`max_num_seqs` is 7, but a step has at least 8 rows"),
        ({"block_size": 48}, "`block_size` is 48, but must be a multiple of 32 on a CPU"),
        ({"fixed_rows": True}, "`fixed_rows` is for GPUs; on a CPU steps have as many rows as round alike"),
    ],
)
def test_what_a_cpu_cannot_have_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"engine_options: {sentence}"):
        arguments(Path("m"), "float32", options, "cpu", 2048)


def test_a_prefill_fits_into_one_step() -> None:
    for context, options, longest, budget in (
        (2048, {}, 2048, 8192),
        (131_072, {}, 8192, 8192),
        (131_072, {"max_model_len": 20_000}, 20_000, 20_000),
        (131_072, {"max_model_len": 100, "max_num_batched_tokens": 200}, 100, 200),
    ):
        made = arguments(Path("m"), "bfloat16", options, "cuda", context)
        assert (made["max_model_len"], made["max_num_batched_tokens"]) == (longest, budget)
        assert made["enable_chunked_prefill"] is False
        assert made["enable_prefix_caching"] is True


def test_defaults_are_for_the_cpu_alone_and_options_override_them() -> None:
    made = arguments(Path("m"), "bfloat16", {"kv_cache_memory_bytes": 5, "block_size": 64}, "cpu", None)
    assert (made["kv_cache_memory_bytes"], made["block_size"], made["enforce_eager"]) == (5, 64, True)
    assert not {"block_size", "enforce_eager", "kv_cache_memory_bytes"} & set(
        arguments(Path("m"), "bfloat16", {}, "cuda", None)
    )


def test_keys_are_never_split_by_how_many_rows_a_step_has() -> None:
    made = arguments(Path("m"), "bfloat16", {"attention_backend": "TRITON_ATTN"}, "cuda", None)
    assert made["attention_config"] == {"flash_attn_max_num_splits_for_cuda_graph": 1}
    assert made["attention_backend"] == "TRITON_ATTN"


def test_float32_on_a_gpu_has_the_same_rows_in_every_step() -> None:
    def rows(dtype: str, **options: Any) -> Any:
        made = arguments(Path("m"), dtype, options, "cuda", None)
        assert "fixed_rows" not in made
        return made.get("max_num_seqs"), made.get("compilation_config")

    assert rows("float32") == (256, {"cudagraph_capture_sizes": [256]})
    assert rows("float32", max_num_seqs=64) == (64, {"cudagraph_capture_sizes": [64]})
    assert rows("bfloat16", fixed_rows=True) == (256, {"cudagraph_capture_sizes": [256]})
    assert rows("bfloat16") == rows("float32", fixed_rows=False) == rows("float32", enforce_eager=True) == (None, None)
    with pytest.raises(UserError, match="`fixed_rows` fills up captured graphs; leave `enforce_eager` out"):
        rows("float32", fixed_rows=True, enforce_eager=True)


def test_the_environment_forces_what_changes_results_and_yields_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    for name in {*environment("cpu")} - {"VLLM_LOGGING_LEVEL", "VLLM_BATCH_INVARIANT"}:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    enter(environment("cpu"))
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_BATCH_INVARIANT"] == "0"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert environment("cuda", batch_invariant=True)["VLLM_BATCH_INVARIANT"] == "1"
    assert set(environment("cpu")) - set(environment("cuda")) == {"TORCHDYNAMO_DISABLE"}


def checkpoint(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]} | config))
    return folder


def test_batch_invariance_is_refused_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="batch_invariant: vLLM has this mode on CUDA GPUs alone"):
        VllmEngine(checkpoint(tmp_path), "bfloat16", batch_invariant=True, options={}, name="m")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"sliding_window": 512, "max_position_embeddings": 4096}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "has recurrent layers"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder"),
        ({"architectures": ["BertModel"]}, "is not a causal language model"),
    ],
)
def test_models_without_an_exact_resume_are_refused_before_loading(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        VllmEngine(checkpoint(tmp_path, **config), "bfloat16", batch_invariant=False, options={}, name="m")
