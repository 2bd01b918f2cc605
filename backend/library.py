"""The model library as a page shows it: what is on disk, what is wrong with it, and how a folder joins it.

Imports no torch and no tokenizer: everything is read from the checkpoint's own small files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from backend import adapters, models
from backend.checkpoints import check_architecture
from backend.engines.remote import RemoteEngine
from backend.errors import UserError
from backend.jobs import Handle, Jobs
from backend.live_jobs import fetch_key
from backend.models import CARD, Model

_TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FACTS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context length",
    "tie_word_embeddings": "embeddings tied",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the library."""

    model: Model
    bytes: int | None
    """Size of the weight files; None until fetched."""
    template: str | None
    """The chat template's source; None for a base model, which gets a plain prompt."""
    facts: Mapping[str, Any]
    """What the config says of the shape, by the name people use."""
    fault: str | None = None
    """Why the model cannot be used, as a sentence."""

    @property
    def on_disk(self) -> bool:
        return self.model.path is not None


def entries() -> list[Entry]:
    """Every model that can be named, those on disk first; a damaged one carries its fault and hides no other."""
    found = {card.parent.name: _entry(card.parent) for card in sorted(models.library_folder().glob(f"*/{CARD}"))}
    sources = {one.name: one.source for one in models.PACKAGED.values()}
    sources |= {one.name: one.source for one in adapters.shipped().values()}
    for name, source in sources.items():
        found.setdefault(name, Entry(Model(name, None, None, None, None, source, None), None, None, {}))
    return sorted(found.values(), key=lambda entry: (not entry.on_disk, entry.model.name))


def _entry(folder: Path) -> Entry:
    unknown = Model(folder.name, None, None, None, None, "unknown", str(folder))
    try:
        model = models.locate(folder.name) or unknown
        files = _weights(folder)
        config = check_architecture(folder)
        facts = {name: config[key] for key, name in _CONFIG_FACTS.items() if config.get(key) is not None}
        return Entry(model, sum(path.stat().st_size for path in files), chat_template(folder), facts)
    except UserError as error:
        return Entry(unknown, None, None, {}, str(error))


def _weights(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    missing = [path.name for path in files if not path.is_file()]
    if missing or not files:
        gone = ", ".join(missing) or "*.safetensors"
        raise UserError(f"the weights of {folder.name} ({gone}) are gone; put them back, or remove {folder}")
    return files


def chat_template(folder: Path) -> str | None:
    """The chat template of a checkpoint, from the file of its own or the tokenizer's configuration."""
    own = folder / _TEMPLATE_FILE
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    template = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) and template else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def add_folder(folder: Path) -> Model:
    """Put a checkpoint folder into the library by links to its files: nothing is copied, nothing of it changes.

    Raises `UserError` for a folder that is no checkpoint, or one of an architecture that cannot be resumed exactly.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give one with config.json and .safetensors weights")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: this folder holds no config.json; give one with a transformers checkpoint")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UserError(f"{folder}: this folder holds no tokenizer; put tokenizer.json beside the weights")
    described = models.locate(str(folder))
    assert described is not None
    for entry in entries():
        if entry.on_disk and entry.fault is None and entry.model.sha256 == described.sha256:
            return entry.model
    name = _free_name(folder.name)
    target = models.library_folder() / name
    making = models.library_folder() / f".add-{name}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != CARD:
            (making / path.name).symlink_to(path)
    card = replace(described, name=name, source=f"local folder {folder}", path=None)
    (making / CARD).write_text(json.dumps(asdict(card), indent=1), encoding="utf-8")
    making.rename(target)
    return replace(card, path=str(target))


def _free_name(wanted: str) -> str:
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted).strip("-.") or "model"
    taken = {entry.model.name for entry in entries()}
    return next(name for n in range(1, 1000) if (name := base if n == 1 else f"{base}-{n}") not in taken)


def short(number: float) -> str:
    """A large count to three digits: 135 M."""
    return _scaled(number, 1000, ("", "k", "M", "B", "T"))


def size(number: float) -> str:
    """Bytes to three digits in binary units: 257 MiB."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while number >= base - 0.5 and power < len(units) - 1:
        number, power = number / base, power + 1
    return f"{number:.{0 if number >= 99.5 or power == 0 else 1}f} {units[power]}".strip()


# What the engine process holds


@dataclass(frozen=True, slots=True)
class Held:
    """The model in the engine process."""

    name: str
    engine: str
    dtype: str
    path: str
    pid: int
    memory: int | None
    """Resident memory of the process in bytes; None where the system does not say."""
    device: str | None


def held(jobs: Jobs) -> Held | None:
    """What the engine process holds now; None without a process."""
    engine = jobs.engine()
    if engine is None or not engine.alive():
        return None
    info = engine.info()
    device = " ".join(part for part in (info.device, info.device_name) if part) or None
    spec = engine.spec
    return Held(spec.name, info.engine, spec.dtype, spec.path, engine.pid, _memory(engine), device)


def _memory(engine: RemoteEngine) -> int | None:
    try:
        return int(psutil.Process(engine.pid).memory_info().rss)
    except psutil.Error:
        return None


def submit_add(jobs: Jobs, what: str) -> int:
    """Bring a local folder or a hub repository into the library."""
    is_folder = Path(what).expanduser().is_dir() or what.startswith((".", "/", "~"))

    def work(handle: Handle) -> str:
        def progress(doing: str, share: float | None) -> None:
            handle.tick(0)
            handle.phase(doing, share)

        if is_folder:
            progress("reading and hashing the weights", None)
            return add_folder(Path(what)).name
        return models.fetch(what, progress).name

    return jobs.submit(fetch_key(what), f"Add {what}", work)
