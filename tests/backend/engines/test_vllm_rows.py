"""The row counts of a step of vLLM, with layers whose kernels change where the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from backend.engines.vllm_rows import fill_up_logits, most_rows


class Layer(nn.Module):
    """As vLLM leaves a layer that it has packed: without its weight, and with a product of its own."""

    def __init__(self, columns: int, changed: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        packed = torch.randn(24, columns, generator=torch.Generator().manual_seed(1))
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        self.input_size_per_partition, self.output_size_per_partition = columns, 24
        # A product whose rows cannot depend on their number, and then what the test does to it.
        self.cpu_linear: Any = lambda x, _weight, _bias: changed(x, (x[:, None, :] * packed).sum(dim=2))


def model(*layers: Layer) -> nn.Module:
    return nn.ModuleList([nn.Identity(), *layers])


def unchanged(_x: Tensor, product: Tensor) -> Tensor:
    return product


def above(rows: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, product: product * (1 + 2**-20) if len(x) > rows else product


def test_rows_end_where_any_product_changes() -> None:
    assert most_rows(model(Layer(16, unchanged)), 8, 64) == 64
    assert most_rows(model(Layer(16, above(32)), Layer(17, above(20)), Layer(18, unchanged)), 8, 64) == 20
    assert most_rows(model(Layer(16, above(8))), 8, 64) == 8


def test_a_change_in_the_last_row_alone_is_seen() -> None:
    def last(x: Tensor, product: Tensor) -> Tensor:
        if len(x) % 6 == 2 and len(x) > 8:
            product[-1] *= 1 + 2**-20
        return product

    assert most_rows(model(Layer(16, last)), 8, 64) == 13


def test_what_is_no_matrix_product_is_left_out() -> None:
    assert most_rows(nn.Sequential(nn.Linear(4, 4), nn.Identity()), 8, 64) == 64


class Head:
    """A product that tells how many rows it had."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.seen.append(len(hidden))
        return hidden * 2


def test_logits_come_of_products_of_as_many_rows_each() -> None:
    head = Head()
    fill_up_logits(head, 8)
    for count in (1, 5, 8, 11):
        hidden = torch.arange(count * 3.0).reshape(count, 3)
        assert torch.equal(head.compute_logits(hidden), hidden * 2)
    assert head.seen == [8, 8, 8, 11]
