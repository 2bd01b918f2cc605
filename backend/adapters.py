"""The LoRA adapters that ship in `data/adapters`: small updates that make further checkpoints of a packaged one.

A subfolder holds PEFT's own two files and `card.json`, what `data/training` wrote when it trained the adapter: the
base's name, the hash of the weights and how they were made. Nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints import sha256_of
from backend.errors import UserError, WorkFailed

FOLDER = Path(__file__).resolve().parents[1] / "data" / "adapters"
CARD = "card.json"
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter that ships."""

    name: str
    """The model library's name of its base with it merged: the folder's name."""
    base: str
    """The model library's name of the checkpoint that it was trained on."""
    sha256: str
    """Hash that its weights file must have."""
    folder: Path
    end: int | None = None
    """Id of the token that it was trained to end its answers with; None for the base's own."""

    @property
    def source(self) -> str:
        """What the merged weights are, for `models list`."""
        return f"{self.base} merged with the LoRA adapter {self.name} (SHA-256 {self.sha256[:12]}…), bfloat16"


def shipped() -> dict[str, Adapter]:
    """Every adapter on this disk, by name. Raises `UserError` for a card that cannot be read."""
    return {card.parent.name: _read(card) for card in sorted(FOLDER.glob(f"*/{CARD}"))}


def verify(adapter: Adapter) -> None:
    """Raise `WorkFailed` where the weights are not those that the card describes."""
    path = adapter.folder / WEIGHTS
    try:
        found = sha256_of([path])
    except OSError as error:
        raise WorkFailed(f"{path}: cannot be read ({error.strerror}); restore it from the repository") from None
    if found != adapter.sha256:
        raise WorkFailed(
            f"{path} has SHA-256 {found}, and its card says {adapter.sha256}; restore both from the repository"
        )


def _read(card: Path) -> Adapter:
    try:
        content = json.loads(card.read_text(encoding="utf-8"))
        end = content.get("end")
        return Adapter(
            card.parent.name,
            str(content["base"]),
            str(content["sha256"]),
            card.parent,
            None if end is None else int(end),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{card}: is damaged; it must be a JSON object with at least base and sha256") from None
