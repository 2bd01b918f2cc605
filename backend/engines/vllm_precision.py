"""bfloat16 products of vLLM on processors without bfloat16 matrix units, as `precision` has them for transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor


def accumulate_in_float32(model: Any) -> int:
    """Give every bfloat16 layer of vLLM's `model` a float32 product that is rounded; returns how many there were.

    vLLM looks a layer's product up under `cpu_linear`; its own choice here would be a scalar loop, unless it has packed
    the weights away for a library that has a kernel for them.
    """
    bfloat16 = (m for m in model.modules() if hasattr(m, "cpu_linear") and m.weight.dtype == torch.bfloat16)
    layers = [layer for layer in bfloat16 if layer.weight.numel()]
    for layer in layers:
        layer.cpu_linear = _product(layer.weight.float())
    return len(layers)


def _product(weight32: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    def product(x: Tensor, _weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x.float(), weight32, None if bias is None else bias.float()).to(x.dtype)

    return product
