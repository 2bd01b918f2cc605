"""bfloat16 linear layers with float32 accumulation: no weight is changed on the way, whatever its size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from backend.engines.precision import accumulate_in_float32

SMALLEST, LARGEST = 2.0**-133, 2.0**100
WEIGHTS = {
    "as trained": [0.5, -0.25, 3.0e-5, 1.1],
    "beyond float16's smallest": [0.5, -0.25, 2.0**-28 * 1.9921875, 2.0**-30],
    "beyond float16's largest": [LARGEST, -LARGEST / 3, LARGEST / 1024, 0.0],
    "too far apart for float16": [LARGEST, 1.0, -1.0, SMALLEST],
    "nothing but zeros": [0.0, 0.0, 0.0, 0.0],
}


def layer(weights: list[float], bias: bool, inputs: int = 48, outputs: int = 20) -> nn.Sequential:
    """A model of one bfloat16 layer whose weights are the given ones in some order."""
    torch.manual_seed(0)
    made = nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    drawn = torch.randint(len(weights), (outputs, inputs), generator=torch.Generator().manual_seed(1))
    made.weight.data = torch.tensor(weights, dtype=torch.bfloat16)[drawn]
    return nn.Sequential(made)


def read(model: nn.Module, inputs: int = 48) -> Tensor:
    """Every weight of the layer, as its products with ones and zeros show it: [outputs, inputs]."""
    found: Tensor = model(torch.eye(inputs, dtype=torch.bfloat16))
    return found.T


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_weight_is_kept(name: str) -> None:
    model = layer(WEIGHTS[name], bias=False)
    (before,) = [weight.detach().clone() for weight in model.parameters()]
    assert accumulate_in_float32(model) == 1
    assert not isinstance(model[0], nn.Linear)
    assert torch.equal(read(model), before)


@pytest.mark.parametrize("name", ["as trained", "beyond float16's smallest", "too far apart for float16"])
def test_a_product_is_summed_in_float32_and_then_rounded(name: str) -> None:
    model = layer(WEIGHTS[name], bias=True)
    weight, bias = [parameter.detach().double() for parameter in model.parameters()]
    x = torch.randn(11, 48, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = x.double() @ weight.T + bias
    accumulate_in_float32(model)
    with torch.inference_mode():
        found = model(x)
    assert found.dtype == torch.bfloat16
    # Half a unit in the last place of bfloat16, and what 48 float32 additions may lose of the largest term.
    allowed = expected.abs() * 2.0**-8 * 1.001 + (x.double().abs() @ weight.abs().T + bias.abs()) * 2.0**-23 * 50
    assert ((found.double() - expected).abs() <= allowed).all()
