"""The card of an adapter: `card.json` for programs, `README.md` for people."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from data.training.evaluate import Evaluation


@dataclass(frozen=True)
class Card:
    """Everything the card says."""

    name: str
    base: str
    """The model library's name of the checkpoint under the adapter."""
    started_from: str
    """Name of the policy that this training started from."""
    sha256: str
    """Of `adapter_model.safetensors`; the model library checks it before it merges."""
    bytes: int
    end: int
    """Id of the token that ends its answers."""
    method: str
    settings: dict[str, Any]
    done: dict[str, object]
    """Steps, seconds and amounts of data, as they came out."""
    evaluation_settings: dict[str, Any]
    before: Evaluation
    """Of `started_from`, on the bundled problems."""
    after: Evaluation

    def write(self, folder: Path) -> None:
        """Write both files into the adapter's folder."""
        content = {
            "name": self.name,
            "base": self.base,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "end": self.end,
            "started_from": self.started_from,
            "method": self.method,
            "data": "problems of the train split of data/problems/generate.py; none shares a question with the bundled",
            "settings": self.settings,
            "done": self.done,
            "machine": machine(),
            "evaluation": self.evaluation_settings,
            "before": self.before.document(),
            "after": self.after.document(),
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / "card.json").write_text(text + "\n", encoding="utf-8")
        (folder / "README.md").write_text(self._readme(), encoding="utf-8")

    def _readme(self) -> str:
        asked = self.evaluation_settings
        done = "\n".join(f"| {key} | {value:,} |" for key, value in self.done.items())
        answers = "\n\n".join(f"```\n{text.strip()}\n```" for text in self.after.examples)
        return f"""# {self.name}

A LoRA adapter of {self.bytes / 1e6:.1f} MB for `{self.base}`, trained from `{self.started_from}` by `data/training`.
{self.method}

| | {self.started_from} | {self.name} |
| --- | --- | --- |
{_table(self.before, self.after)}

Measured on the first {self.after.problems} bundled problems, none of which shares a question with the training ones:
{self.after.samples} answers each at temperature {asked["temperature"]} and top-p {asked["top_p"]}, at most
{asked["max_tokens"]} tokens; an answer cut off there is wrong. Intervals are 95 % bootstrap intervals over problems.
A low-margin token is one whose raw logprobs of the two most probable tokens differ by less than 1 nat.

| training | |
| --- | --- |
{done}
| end of an answer | token {self.end} |
| machine | {machine()} |
| SHA-256 of the weights | `{self.sha256}` |

Every setting is in `card.json`, the curve in `curve.csv`.

![The learning curve](curve.svg)

Its first answer to the first bundled problem of each tier:

{answers}
"""


def machine() -> str:
    """The device and the versions that a result may depend on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return f"{device}, Python {platform.python_version()}, {versions}"


def _table(before: Evaluation, after: Evaluation) -> str:
    """Rows of the comparison, in Markdown."""
    rows = [("right", _share(before), _share(after))]
    for tier, share in after.accuracy_by_tier.items():
        label = "1 step" if tier == 1 else f"{tier} steps"
        rows.append((label, f"{before.accuracy_by_tier[tier]:.1%}", f"{share:.1%}"))
    rows.append(("low-margin tokens an answer", f"{before.low_margin_tokens:.1f}", f"{after.low_margin_tokens:.1f}"))
    rows.append(("tokens an answer", f"{before.tokens:.0f}", f"{after.tokens:.0f}"))
    rows.append(("cut off", f"{before.unfinished:,}", f"{after.unfinished:,}"))
    return "\n".join(f"| {label} | {left} | {right} |" for label, left, right in rows)


def _share(evaluation: Evaluation) -> str:
    """`57.1% (54.8–59.3)`"""
    between = "" if evaluation.ci95 is None else f" ({100 * evaluation.ci95[0]:.1f}–{100 * evaluation.ci95[1]:.1f})"
    return f"{evaluation.accuracy:.1%}{between}"
