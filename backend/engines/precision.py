"""bfloat16 linear layers on processors without bfloat16 matrix units.

There PyTorch multiplies bfloat16 matrices by a scalar loop (8 GFLOP/s a core where float32 reaches 65). The weights are
kept beside themselves in float32 instead, the product accumulates in float32 as a matrix unit does, and the result is
rounded to bfloat16: the same arithmetic by a faster road.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


def reproducible() -> None:
    """Ask the matrix library for the same bits in every run, whatever threads and addresses a run happens to get.

    By default MKL may take another path for another memory alignment or thread schedule, which shows as a last bit now
    and then. It reads the variable at its first call, so this comes before the weights are loaded.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def has_bfloat16_units() -> bool:
    """Whether this processor's matrix library multiplies bfloat16 natively."""
    supported: Any = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported()) if supported is not None else True


class _Accumulated(nn.Module):
    """A linear layer: bfloat16 in and out, float32 between."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight32 = nn.Parameter(weight.float(), requires_grad=False)
        self.bias32 = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.float(), self.weight32, self.bias32).to(x.dtype)


def accumulate_in_float32(model: nn.Module) -> int:
    """Replace every bfloat16 linear layer of `model`; returns how many there were."""
    targets = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.weight.dtype == torch.bfloat16
    ]
    for parent, name, child in targets:
        setattr(parent, name, _Accumulated(child.weight.data, None if child.bias is None else child.bias.data))
    return len(targets)
