"""Train the adapters that ship, from scratch: `python -m data.training.train`.

Supervised training on worked solutions, then reinforcement on top, each evaluated on the bundled problems. Writes
`<out>/<base>-sft` and `<out>/<base>-grpo` with weights, curve and card; the cards say how long it took, and where.
`--smoke` runs two steps of each on a handful of problems anywhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from backend import models
from backend.errors import PivotscopeError
from data.training import grpo, sft
from data.training.card import Card
from data.training.curves import Curve, draw
from data.training.evaluate import Evaluation, EvaluationSettings, evaluate
from data.training.grpo import GrpoSettings, train_grpo
from data.training.policy import ADAPTER_WEIGHTS, Policy
from data.training.sft import SftSettings, train_sft

SFT_METHOD = (
    "Supervised: token cross-entropy on worked solutions whose wording is drawn anew each time, stopped at "
    "a target accuracy so that the policy keeps choices to make."
)
GRPO_METHOD = (
    "Group-relative policy optimisation: groups of answers to one problem, reward 1 for a right answer by "
    "`backend/grading.py`, token-level clipped loss with a small KL term to the policy it started from."
)
SFT_PANELS = {"loss": "loss a token (nats)", "validation_accuracy": "right, validation problems"}
GRPO_PANELS = {
    "reward": "right, training problems at T = 1",
    "low_margin_tokens": "low-margin tokens, mixed groups",
    "kl": "KL to the start (nats a token)",
}


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    sft: SftSettings = field(default_factory=SftSettings)
    grpo: GrpoSettings = field(default_factory=GrpoSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    seed: int = 0


SMOKE = Plan(
    SftSettings(steps=2, rows=4, problems=16, validate_every=2, validation_problems=4, max_tokens=8),
    GrpoSettings(steps=2, problems_per_step=2, group=4, problems=16, max_tokens=8, chunk=4),
    EvaluationSettings(problems=8, samples=2, max_tokens=8, rows=12, chunk=4),
)


def train(base: Path, base_name: str, out: Path, plan: Plan, device: str) -> None:
    """Run the plan; what a finished stage made is on the disk before the next begins."""
    policy = Policy(base, plan.seed, device)
    policy.synchronise()
    before = _evaluated(policy, base_name, plan)

    name = f"{base_name}-sft"
    curve = Curve(out / name / "curve.csv", sft.COLUMNS)
    done = train_sft(policy, plan.sft, curve)
    draw(curve.path, SFT_PANELS, out / name / "curve.svg")
    supervised = _finish(policy, plan, out / name, base_name, (base_name, before), SFT_METHOD, asdict(plan.sft), done)

    name = f"{base_name}-grpo"
    curve = Curve(out / name / "curve.csv", grpo.COLUMNS)
    done = train_grpo(policy, plan.grpo, curve, keep=lambda: policy.save(out / name, base_name))
    draw(curve.path, GRPO_PANELS, out / name / "curve.svg")
    start = (f"{base_name}-sft", supervised)
    _finish(policy, plan, out / name, base_name, start, GRPO_METHOD, asdict(plan.grpo), done)


def _finish(
    policy: Policy,
    plan: Plan,
    folder: Path,
    base_name: str,
    start: tuple[str, Evaluation],
    method: str,
    settings: dict[str, object],
    done: dict[str, object],
) -> Evaluation:
    """Write the adapter as it ships, evaluate exactly that, and write its card."""
    policy.round_adapter()
    sha256 = policy.save(folder, base_name)
    after = _evaluated(policy, folder.name, plan)
    started_from, before = start
    Card(
        name=folder.name,
        base=base_name,
        started_from=started_from,
        sha256=sha256,
        bytes=(folder / ADAPTER_WEIGHTS).stat().st_size,
        end=policy.end,
        method=method,
        settings={**settings, "seed": plan.seed},
        done=done,
        evaluation_settings=asdict(plan.evaluation),
        before=before,
        after=after,
    ).write(folder)
    return after


def _evaluated(policy: Policy, name: str, plan: Plan) -> Evaluation:
    started = time.monotonic()
    result = evaluate(policy, plan.evaluation)
    print(
        f"{name}: {result.accuracy:.1%} right, interval {result.ci95}, by tier {result.accuracy_by_tier}, "
        f"{result.low_margin_tokens:.1f} low-margin tokens an answer ({time.monotonic() - started:.0f} s)",
        flush=True,
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    plan = Plan()
    parser.add_argument("--base", default=models.PACKAGED_MODEL, help="library name, or folder of a checkpoint")
    parser.add_argument("--base-name", default=models.PACKAGED_MODEL, help="library name the adapters are for")
    parser.add_argument("--out", type=Path, default=models.ROOT / "data" / "adapters", help="where the adapters go")
    parser.add_argument("--sft-seconds", type=float, default=plan.sft.seconds, help="limit of supervised training")
    parser.add_argument("--grpo-seconds", type=float, default=plan.grpo.seconds, help="limit of reinforcement")
    parser.add_argument("--sft-target", type=float, default=plan.sft.target, help="validation accuracy to stop at")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="two steps of each stage, to see that all of it runs")
    args = parser.parse_args(arguments)
    plan = SMOKE if args.smoke else plan
    plan = replace(
        plan,
        sft=replace(plan.sft, seconds=args.sft_seconds, target=args.sft_target),
        grpo=replace(plan.grpo, seconds=args.grpo_seconds),
    )
    try:
        base = models.fetch(args.base)
    except PivotscopeError as error:
        print(error, file=sys.stderr)
        return 2
    train(Path(str(base.path)), args.base_name, args.out, plan, args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
