"""The study's architectures on the embedded engine: resumed bit for bit everywhere, rebuilt, asked their own way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from backend.checkpoints import check_architecture
from backend.engines.base import Point, Quiet, RolloutRequest, Sampling
from backend.engines.comparison import difference
from backend.engines.transformers_engine import TransformersEngine
from backend.errors import UserError
from backend.problems import messages, plain_prompt
from backend.records import Trace
from tests.vllm.checkpoints import make_checkpoint

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
QUESTION = "Mia has 12 apples and buys 7 more. How many apples does Mia have now?"
SAMPLING = Sampling(1.0, 0.95, 32)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / request.param, request.param)


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engine(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[TransformersEngine]:
    running = load(checkpoint, request.param)
    yield running
    running.close()


def load(folder: Path, dtype: str) -> TransformersEngine:
    return TransformersEngine(folder, dtype, name=folder.name, sha256=None, options={"device": "cpu"})


@pytest.fixture(scope="module")
def traces(engine: TransformersEngine) -> list[Trace]:
    """Rollouts whose states the engine keeps."""
    prompt = engine.prompt_ids(messages(QUESTION), plain_prompt(QUESTION))
    return engine.rollouts([RolloutRequest(f"r{i}", prompt, 100 + i, SAMPLING) for i in range(3)], Quiet())


def test_the_shape_is_accepted_and_told(checkpoint: Path, engine: TransformersEngine) -> None:
    config = check_architecture(checkpoint)
    assert config["architectures"] == [ARCHITECTURES[checkpoint.name]]
    assert engine.info().architecture == ARCHITECTURES[checkpoint.name]


def test_exact_resume_is_bitwise_at_every_position(engine: TransformersEngine, traces: list[Trace]) -> None:
    places = [(trace, i) for trace in traces for i in range(len(trace.ids))]
    assert len(places) > 50, "the rollouts are too short to say anything"
    points = [Point(trace.handle, len(trace.prompt_ids) + i) for trace, i in places]
    for (trace, i), found in zip(places, engine.verify(points, Quiet()), strict=True):
        gap = difference(trace.top[i], found.top)
        assert gap == 0.0, f"{trace.handle}, token {i}: recorded {trace.top[i]}, resumed {found.top}, off by {gap}"
        assert found.cached == found.expected_cached


def test_a_rebuilt_state_is_the_recorded_one(engine: TransformersEngine, traces: list[Trace]) -> None:
    handles = [trace.handle for trace in traces]
    engine.release(handles)
    assert engine.holds(handles) == [False] * len(handles)
    for verdict in engine.rebuild(traces, Quiet()):
        assert verdict.provenance == "rebuilt, verified", verdict
    assert engine.holds(handles) == [True] * len(handles)


def test_a_chat_template_is_used_where_there_is_one(checkpoint: Path, engine: TransformersEngine) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = tokenizer.decode(engine.prompt_ids(messages(QUESTION), plain_prompt(QUESTION)))
    assert text.startswith(f"<|im_start|>user\n{QUESTION}")
    assert text.endswith("<|im_start|>assistant\n")


def test_a_base_model_gets_the_plain_prompt(checkpoint: Path, tmp_path: Path) -> None:
    base = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    config = json.loads((base / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    engine = load(base, "float32")
    prompt = engine.prompt_ids(messages(QUESTION), plain_prompt(QUESTION))
    assert AutoTokenizer.from_pretrained(base).decode(prompt) == plain_prompt(QUESTION)
    (trace,) = engine.rollouts([RolloutRequest("r", prompt, 1, SAMPLING)], Quiet())
    assert trace.prompt_ids == prompt
    assert trace.ids
    engine.close()


# What is refused, with the reason

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("mistral", {}, "MistralForCausalLM", "has sliding-window attention (4096 tokens)"),
    ("gemma2", {}, "Gemma2ForCausalLM", "has sliding-window attention (4096 tokens)"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 1024}, "Qwen2ForCausalLM", "(1024 tokens)"),
    ("phi3", {"sliding_window": 2047}, "Phi3ForCausalLM", "has sliding-window attention (2047 tokens)"),
    ("gpt_neo", {}, "GPTNeoForCausalLM", "has local attention layers"),
    ("llama4_text", {}, "Llama4ForCausalLM", "has local attention layers"),
    ("mamba", {}, "MambaForCausalLM", "has recurrent layers"),
    ("mamba2", {}, "Mamba2ForCausalLM", "has recurrent layers"),
    ("rwkv", {}, "RwkvForCausalLM", "has recurrent layers"),
    ("recurrent_gemma", {}, "RecurrentGemmaForCausalLM", "has recurrent layers"),
    ("jamba", {}, "JambaForCausalLM", "has recurrent layers"),
    ("falcon_h1", {}, "FalconH1ForCausalLM", "has recurrent layers"),
    ("nemotron_h", {}, "NemotronHForCausalLM", "has recurrent layers"),
    ("qwen3_next", {}, "Qwen3NextForCausalLM", "has recurrent layers"),
    ("t5", {}, "T5ForConditionalGeneration", "is an encoder-decoder"),
    ("bart", {}, "BartForConditionalGeneration", "is an encoder-decoder"),
    ("bert", {}, "BertForMaskedLM", "is not a causal language model"),
]


@pytest.mark.parametrize(("kind", "changed", "architecture", "reason"), REFUSED)
def test_other_architectures_are_refused(
    kind: str, changed: dict[str, Any], architecture: str, reason: str, tmp_path: Path
) -> None:
    AutoConfig.for_model(kind, **changed, architectures=[architecture]).save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        check_architecture(tmp_path)
    assert str(caught.value).startswith(architecture)
    assert reason in str(caught.value)
    assert "a prefix cannot be resumed exactly" in str(caught.value)


def test_a_window_as_wide_as_the_context_never_slides(tmp_path: Path) -> None:
    config = AutoConfig.for_model("phi3", sliding_window=262144, max_position_embeddings=131072)
    config.architectures = ["Phi3ForCausalLM"]  # as Phi-4-mini has it
    config.save_pretrained(tmp_path)
    assert check_architecture(tmp_path)["sliding_window"] == 262144


def test_a_config_that_is_no_json_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        check_architecture(tmp_path)
