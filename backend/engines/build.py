"""The one place that knows which engine is which; it imports none before it is asked for."""

from __future__ import annotations

from pathlib import Path

from backend.engines.base import Engine
from backend.engines.wire import EngineSpec
from backend.errors import UserError


def build(spec: EngineSpec) -> Engine:
    """Load what `spec` names. Raises `UserError` or `WorkFailed` with the sentence to show."""
    if spec.engine == "scripted":
        from backend.engines.scripted_engine import ScriptedEngine

        return ScriptedEngine(spec.path, spec.dtype, spec.options, batch_invariant=spec.batch_invariant)
    if spec.engine == "transformers":
        if spec.batch_invariant:
            raise UserError('batch_invariant: the transformers engine has no such mode; use engine = "vllm" on a GPU')
        from backend.engines.transformers_engine import TransformersEngine

        return TransformersEngine(Path(spec.path), spec.dtype, name=spec.name, sha256=spec.sha256, options=spec.options)
    if spec.engine == "vllm":
        from backend.engines.vllm_engine import VllmEngine

        return VllmEngine(
            Path(spec.path), spec.dtype, batch_invariant=spec.batch_invariant, options=spec.options, name=spec.name
        )
    raise UserError(f"engine {spec.engine!r} is unknown; use transformers or vllm")
