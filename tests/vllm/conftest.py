"""These tests run the real vLLM, in its environment, which lacks what the other tests' fixtures need:

`.venv-vllm/bin/python -m pytest --confcutdir tests/vllm tests/vllm`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backend.engines.vllm_options import enter, environment

if TYPE_CHECKING:
    from backend.engines.vllm_engine import VllmEngine

enter(environment("cpu"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., VllmEngine]]:
    """Starts an engine on a generated checkpoint; the one before it is closed."""
    from backend.engines.vllm_engine import VllmEngine
    from tests.vllm.checkpoints import make_checkpoint

    running: list[VllmEngine] = []

    def starter(architecture: str = "llama", dtype: str = "bfloat16", hidden: int = 128, **options: Any) -> VllmEngine:
        while running:
            running.pop().close()
        folder: Path = tmp_path_factory.mktemp(architecture)
        make_checkpoint(folder, architecture, hidden)
        chosen = {"kv_cache_memory_bytes": 64 << 20} | options
        running.append(VllmEngine(folder, dtype, batch_invariant=False, options=chosen, name=architecture))
        return running[-1]

    yield starter
    while running:
        running.pop().close()
