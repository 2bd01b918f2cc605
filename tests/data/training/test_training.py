"""The training stages on a tiny checkpoint: what each computes, and that the whole runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from backend.adapters import Adapter, verify
from backend.conversion import merge
from data.problems.generate import BUNDLED_FILE, Row
from data.training import grpo
from data.training.batches import Batch, endless, pack, prompt_ids, sampled, training_rows
from data.training.curves import Curve, draw, ticks
from data.training.grpo import GrpoSettings, group_advantages, token_losses, train_grpo
from data.training.policy import Policy, completion_logits, low_margins, token_logprobs
from data.training.sft import TRAINING_SEED, VALIDATION_SEED, SftSettings
from data.training.train import main
from tests.vllm.checkpoints import make_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    return make_checkpoint(folder, hidden=64, num_hidden_layers=2, torch_dtype="bfloat16")


def test_training_and_validation_problems_are_new() -> None:
    bundled = {json.loads(line)["question"] for line in BUNDLED_FILE.read_text(encoding="utf-8").splitlines()}
    validation = training_rows(SftSettings().validation_problems, VALIDATION_SEED)
    training = training_rows(SftSettings().problems, TRAINING_SEED, without=validation)
    reinforcement = training_rows(GrpoSettings().problems, grpo.TRAINING_SEED)
    questions = [{row["question"] for row in rows} for rows in (validation, training, reinforcement)]
    assert all(len(some) > 100 for some in questions)
    assert not any(bundled & some for some in questions)
    assert not questions[0] & questions[1]


def test_a_batch_meets_at_one_column() -> None:
    batch = pack([[5, 6, 7], [8]], [[1], [2, 3]], pad=0, device=CPU)
    assert batch.ids.tolist() == [[5, 6, 7, 1, 0], [0, 0, 8, 2, 3]]
    assert batch.mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch.completions.tolist() == [[1, 0], [2, 3]]
    assert batch.scored.tolist() == [[1, 0], [1, 1]]
    assert batch.positions[1].tolist() == [0, 0, 0, 1, 2]


def test_a_completion_ends_with_its_first_end_token() -> None:
    ids = torch.tensor([[9, 9, 4, 2, 2, 2], [2, 9, 4, 5, 6, 7], [2, 9, 2, 2, 2, 2]])
    batch = sampled(ids, torch.tensor([[1, 1], [0, 1], [0, 1]]), end=2)
    assert batch.scored.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert batch.finished(2).tolist() == [True, False, True]


def test_endless_gives_each_problem_once_a_pass() -> None:
    import random

    rows = training_rows(12, seed=4)
    batches = endless(rows, 4, random.Random(0))
    once, twice = ([row["problem"] for _ in range(3) for row in next(batches)] for _ in range(2))
    assert sorted(once) == sorted(twice) == sorted(row["problem"] for row in rows)
    assert once != twice


def test_advantages_are_standard_scores_of_the_group() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
    advantages, mixed = group_advantages(rewards)
    third = 3**-0.5
    expected = torch.tensor([[3 * third, -third, -third, -third], [0.0] * 4, [0.0] * 4, [1, 1, -1, -1]])
    torch.testing.assert_close(advantages, expected)
    assert mixed.tolist() == [True, False, False, True]


def test_the_loss_on_policy_is_the_policy_gradient() -> None:
    old = torch.tensor([[-0.5, -2.0], [-1.0, -0.1]])
    new = old.clone().requires_grad_()
    losses = token_losses(new, old, old, torch.tensor([1.5, -0.5]), GrpoSettings(kl=0.1))
    losses.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-1.5, -1.5], [0.5, 0.5]]))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "gradient"),
    [(0.5, 1.0, 0.0), (-0.5, -1.0, 0.0), (0.1, 1.0, -1.0), (0.5, -1.0, 1.0), (-0.5, 1.0, -1.0)],
)
def test_the_ratio_is_clipped_only_where_it_went_far_enough(
    log_ratio: float, advantage: float, gradient: float
) -> None:
    new = torch.tensor([[log_ratio - 1.0]], requires_grad=True)
    old = torch.tensor([[-1.0]])
    token_losses(new, old, new.detach(), torch.tensor([advantage]), GrpoSettings(kl=0.0)).sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[gradient]]) * torch.tensor(log_ratio).exp())


def test_the_kl_term_pulls_back_to_the_start() -> None:
    new = torch.tensor([[-1.0]], requires_grad=True)
    reference = torch.tensor([[-2.0]])
    losses = token_losses(new, new.detach(), reference, torch.tensor([0.0]), GrpoSettings(kl=0.5))
    ratio = torch.tensor(-1.0).exp()
    torch.testing.assert_close(losses.detach(), (0.5 * (ratio - torch.tensor(-1.0) - 1)).view(1, 1))
    losses.sum().backward()
    torch.testing.assert_close(new.grad, (0.5 * (1 - ratio)).view(1, 1))


def test_logprobs_do_not_depend_on_the_padding(base: Path) -> None:
    """A row alone and the same row padded into a batch: equal in float32 but for the order of sums."""
    policy = Policy(base, seed=0, device="cpu")
    model = policy.sampler.float()
    prompts, completions = [[5, 6, 7, 8, 9], [20, 21]], [[30, 31], [40, 41, 42, 43]]
    together = pack(prompts, completions, policy.end, CPU)
    with torch.no_grad():
        both = token_logprobs(completion_logits(model, together), together)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            alone = pack([prompt], [completion], policy.end, CPU)
            logits = model(input_ids=alone.ids).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(1)[torch.arange(len(completion)), torch.tensor(completion)]
            torch.testing.assert_close(both[row, : len(completion)], expected, rtol=1e-5, atol=1e-5)


def test_low_margins_are_counted_over_scored_tokens() -> None:
    logits = torch.tensor([[[3.0, 2.5, 0.0], [3.0, 1.0, 0.0], [1.0, 1.0, 1.0]]])
    batch = pack([[1]], [[1, 2]], pad=0, device=CPU)
    padded = Batch(torch.cat([batch.ids, batch.ids[:, :1]], 1), torch.tensor([[1, 1, 1, 0]]), 1)
    assert low_margins(logits, padded).tolist() == [1.0]


def _low_ids(policy: Policy, batch: Batch, rows: Sequence[Row]) -> Tensor:
    """A reward that a random checkpoint can be taught in a few steps: a token of the vocabulary's first half."""
    return (batch.completions[:, 0] < 256).float()


@torch.no_grad()
def _expected_low_ids(policy: Policy, rows: Sequence[Row]) -> float:
    """The reward's exact expectation over one token a problem."""
    batch = pack(prompt_ids(policy.tokenizer, rows), [[0]] * len(rows), policy.end, CPU)
    return float(completion_logits(policy.sampler, batch).softmax(2)[:, 0, :256].sum(1).mean())


def test_grpo_raises_its_reward(base: Path, tmp_path: Path) -> None:
    policy = Policy(base, seed=0, device="cpu")
    settings = GrpoSettings(
        steps=6, seconds=600, problems_per_step=2, group=16, problems=8, max_tokens=1, learning_rate=2e-2, chunk=8
    )
    rows = training_rows(8, seed=4)
    before = _expected_low_ids(policy, rows)
    curve = Curve(tmp_path / "curve.csv", grpo.COLUMNS)
    done = train_grpo(policy, settings, curve, keep=lambda: None, reward=_low_ids)
    policy.synchronise()
    after = _expected_low_ids(policy, rows)
    with curve.path.open(encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    assert done["steps"] == len(steps) == 6
    assert after > before + 0.06, (before, after)
    assert float(steps[-1]["kl"]) > 0


def test_two_steps_of_everything(base: Path, tmp_path: Path) -> None:
    """The one command's smoke run writes both adapters; merged from the files they are what was evaluated."""
    assert main(["--base", str(base), "--base-name", "tiny", "--out", str(tmp_path), "--smoke", "--device", "cpu"]) == 0
    for name in ("tiny-sft", "tiny-grpo"):
        folder = tmp_path / name
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        verify(Adapter(name, card["base"], card["sha256"], folder))
        assert card["base"] == "tiny"
        assert card["done"]["steps"] == 2
        assert card["after"]["problems"] == 8
        assert len((folder / "curve.csv").read_text(encoding="utf-8").splitlines()) == 3
        assert (folder / "curve.svg").read_text(encoding="utf-8").startswith("<svg")
        assert card["sha256"] in (folder / "README.md").read_text(encoding="utf-8")
        assert (
            json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
            == "tiny"
        )
    first = load_file(tmp_path / "tiny-sft" / "adapter_model.safetensors")
    assert all(tensor.dtype == torch.bfloat16 for tensor in first.values())
    assert len(first) == 2 * 2 * 7
    assert any(tensor.any() for name, tensor in first.items() if "lora_B" in name)


def test_the_saved_adapter_merges_to_the_sampler(base: Path, tmp_path: Path) -> None:
    policy = Policy(base, seed=0, device="cpu")
    torch.manual_seed(1)
    for parameter in policy.parameters:
        parameter.data.normal_(std=0.1)
    policy.round_adapter()
    policy.save(tmp_path / "adapter", "tiny")
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    written = load_file(tmp_path / "merged" / "model.safetensors")
    original = load_file(base / "model.safetensors")
    sampler = policy.sampler.state_dict()
    assert all(torch.equal(tensor, sampler[name]) for name, tensor in written.items())
    assert sum(not torch.equal(written[name], original[name]) for name in original) == 2 * 7


def test_a_curve_is_drawn(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.csv", ("step", "loss", "accuracy"))
    curve.add(1, 2.0, None)
    curve.add(2, 1.0, None)
    draw(curve.path, {"loss": "a < b", "accuracy": "right"}, tmp_path / "curve.svg")
    drawing = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert drawing.count("<polyline") == 1
    assert "a &lt; b" in drawing
    assert "not measured" in drawing


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.12, 0.61), (3.0, 3.0), (0, 37), (-0.002, 0.0004)])
def test_ticks_are_few_and_cover(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 7
