"""What works on this machine, what does not, and what to do. Needs only the standard library to start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend import models
from backend.errors import PivotscopeError, UserError

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = (3, 11)
WORKER_MEMORY = 3 * 2**30
"""Bytes that a worker with the packaged model may take."""
DISK = 2 * 2**30
"""Bytes for a store, its runs and a small model."""

Status = Literal["ok", "warning", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Status
    detail: str
    advice: str | None = None
    """What to do about it; None where nothing need be done."""
    essential: bool = False
    """Whether Pivotscope does not work without it."""

    @property
    def fatal(self) -> bool:
        """Whether nothing works until this is mended."""
        return self.essential and self.status in {"missing", "broken"}


def examine(store: Path) -> list[Finding]:
    """Look at everything; each finding stands for itself, a failure of one does not hide the others."""
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("packages", _packages),
        ("engines", _engines),
        ("models", _models),
        ("processor", _processor),
        ("gpu", _gpu),
        ("store", lambda: _store(store)),
        ("memory", _memory),
        ("disk", lambda: _disk(store)),
        ("browser tests", _chromium),
    ]
    findings: list[Finding] = []
    for name, look in looks:
        try:
            findings += look()
        except Exception as error:
            findings.append(Finding(name, "warning", f"could not be looked at ({type(error).__name__}: {error})"))
    return findings


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("python", "broken", version, "make the environment with Python 3.11 or newer", essential=True)
    else:
        yield Finding("python", "ok", f"{version} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    """The packages of requirements.txt against what is installed."""
    path, advice = ROOT / "requirements.txt", "run `pip install -r requirements.txt`"
    try:
        from packaging.requirements import Requirement

        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except ImportError:
        yield Finding("packages", "missing", "packaging is not installed", advice, essential=True)
        return
    except OSError:
        yield Finding("packages", "warning", f"{path.name} is not there", "restore it from the repository")
        return
    wanted = [Requirement(line) for line in lines if line and not line.startswith("-")]
    fine = []
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate():
            continue
        version = _version(one.name)
        if version is None:
            yield Finding(f"package {one.name}", "missing", f"{one} is needed", advice, essential=True)
        elif not one.specifier.contains(version, prereleases=True):
            yield Finding(f"package {one.name}", "warning", f"{version} is installed, {one} is asked for", advice)
        else:
            fine.append(f"{one.name} {version}")
    if fine:
        yield Finding("packages", "ok", ", ".join(fine))


def _engines() -> Iterator[Finding]:
    torch, transformers = _version("torch"), _version("transformers")
    if torch and transformers:
        yield Finding("engine transformers", "ok", f"transformers {transformers}, torch {torch}")
    else:
        lack = " and ".join(name for name, there in (("torch", torch), ("transformers", transformers)) if not there)
        yield Finding(
            "engine transformers", "missing", f"{lack} not installed", "run `pip install -r requirements.txt`", True
        )
    yield _vllm()


def _vllm() -> Finding:
    advice = (
        "install requirements-vllm.txt (CUDA) or requirements-vllm-cpu.txt into an environment of its own and name its "
        "Python in PIVOTSCOPE_WORKER_PYTHON, or in a campaign's worker_python"
    )
    here = _version("vllm") or _version("vllm-cpu")
    if here:
        return Finding("engine vllm", "ok", f"vllm {here} in this environment")
    worker = os.environ.get("PIVOTSCOPE_WORKER_PYTHON")
    if not worker:
        return Finding("engine vllm", "missing", "not installed; only large campaigns need it", advice)
    found = _vllm_of(worker)
    if found is None:
        return Finding("engine vllm", "broken", f"PIVOTSCOPE_WORKER_PYTHON is {worker}, which holds no vllm", advice)
    return Finding("engine vllm", "ok", f"vllm {found} at {worker}")


def _vllm_of(python: str) -> str | None:
    """vLLM's version in another interpreter's environment; None without one."""
    script = (
        "import importlib.metadata as m\n"
        "found = [m.version(n) for n in ('vllm', 'vllm-cpu') if list(m.distributions(name=n))]\n"
        "print(found[0] if found else '')"
    )
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _models() -> Iterator[Finding]:
    try:
        here = [model for model in models.list_models() if model.path is not None]
    except UserError as error:
        yield Finding("models", "broken", str(error))
        return
    fetch = f"run `python -m backend models fetch {models.DEFAULT_MODEL}` (89 MB)"
    if not here:
        yield Finding(
            "models", "missing", f"none in {models.library_folder()}; the default is fetched on first use", fetch
        )
    else:
        yield Finding("models", "ok", f"{', '.join(model.name for model in here)} in {models.library_folder()}")


def _processor() -> Iterator[Finding]:
    cores = os.cpu_count()
    flags = _processor_flags()
    units = sorted(flags & {"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16"})
    if units:
        yield Finding("processor", "ok", f"{cores} cores, bfloat16 units ({', '.join(units)})")
    elif flags:
        yield Finding(
            "processor",
            "warning",
            f"{cores} cores without bfloat16 matrix units: bfloat16 is computed with float32 accumulation and rounded",
            "nothing need be done",
        )
    else:
        yield Finding("processor", "ok", f"{cores} cores; whether it has bfloat16 units is unknown")


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    return set(lines[0].partition(":")[2].split()) if lines else set()


def _gpu() -> Iterator[Finding]:
    none = "none; the transformers engine runs on the processor"
    if shutil.which("nvidia-smi") is None:
        yield Finding("gpu", "missing", none, "large campaigns want one, with vllm")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    cards = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not cards:
        yield Finding("gpu", "warning", "nvidia-smi is there but answers nothing", "look at the NVIDIA driver")
        return
    torch = _version("torch") or ""
    cpu_build = torch.endswith("+cpu")
    yield Finding(
        "gpu",
        "warning" if cpu_build else "ok",
        "; ".join(cards),
        "torch is a build for processors; the GPU serves vllm in its own environment" if cpu_build else None,
    )


def _store(path: Path) -> Iterator[Finding]:
    if not path.exists():
        folder = path.resolve().parent
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield Finding("store", "ok", f"{path} is not there yet; the first command makes it")
        else:
            advice = "create the folder, or give --store another file"
            yield Finding("store", "broken", f"{folder} is no folder that can be written", advice, essential=True)
        return
    try:
        from backend.store import Store
        from backend.store_errors import StoreHeldError
    except ImportError as error:
        yield Finding("store", "broken", f"cannot be opened ({error})", "install the packages first", essential=True)
        return
    try:
        with Store(path, read_only=True) as store:
            campaigns = len(store.campaigns())
        yield Finding("store", "ok", f"{path}: {campaigns} campaigns, {_gib(path.stat().st_size)}")
    except StoreHeldError as error:
        yield Finding("store", "ok", f"in use: {error}")
    except PivotscopeError as error:
        yield Finding("store", "broken", str(error), essential=True)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{_gib(memory.available)} free of {_gib(memory.total)}"
    if memory.available < WORKER_MEMORY:
        advice = f"a worker with the packaged model may take {_gib(WORKER_MEMORY)}; end other programs"
        yield Finding("memory", "warning", detail, advice)
    else:
        yield Finding("memory", "ok", detail)


def _disk(store: Path) -> Iterator[Finding]:
    folder = next(path for path in (store.resolve().parent, *store.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    detail = f"{_gib(free)} free at {folder}"
    if free < DISK:
        yield Finding("disk", "warning", detail, "free some space; what is stored stays when it runs out")
    else:
        yield Finding("disk", "ok", detail)


def _chromium() -> Iterator[Finding]:
    found = os.environ.get("PIVOTSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        advice = "on Debian run `apt-get install chromium`; only the browser tests need it"
        yield Finding("browser tests", "missing", "no Chromium", advice)
    else:
        yield Finding("browser tests", "ok", found)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
