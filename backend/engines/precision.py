"""bfloat16 linear layers on processors without bfloat16 matrix units.

There PyTorch multiplies bfloat16 matrices by a scalar loop (8 GFLOP/s a core where float32 reaches 65). Here the
product accumulates in float32, as a matrix unit does, and the result is rounded to bfloat16: the same arithmetic by a
faster road. A decode step has few rows and mostly reads weights. So they are packed once as float16 wherever each of
them is exactly a float16 number times one power of two, which nearly always holds; elsewhere they are kept in float32.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

_LIBRARIES = {"fbgemm", "x86"}
"""Names under which PyTorch lists FBGEMM among what it was built with."""


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


class _Packed(nn.Module):
    """The same layer with its weights packed as float16, times 2 to the power of `shift`."""

    def __init__(self, scaled: Tensor, shift: int, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(scaled, None)
        self.scale = 2.0**-shift
        self.bias32 = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        if self.scale != 1.0:
            out *= self.scale
        if self.bias32 is not None:
            out += self.bias32
        return out.to(x.dtype)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    if not _LIBRARIES.isdisjoint(torch.backends.quantized.supported_engines):
        wide = weight.float()
        # As they are, or with the largest just below float16's limit, which leaves the most room for small ones.
        _, exponent = torch.frexp(wide.abs().max())
        for shift in (0, 15 - int(exponent)):
            scaled = wide * 2.0**shift
            if torch.equal(scaled.half().float(), scaled):
                return _Packed(scaled, shift, bias)
    return _Accumulated(weight, bias)


def accumulate_in_float32(model: nn.Module) -> int:
    """Replace every bfloat16 linear layer of `model`; returns how many there were."""
    targets = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.weight.dtype == torch.bfloat16
    ]
    for parent, name, child in targets:
        setattr(parent, name, _linear(child.weight.data, None if child.bias is None else child.bias.data))
    return len(targets)
