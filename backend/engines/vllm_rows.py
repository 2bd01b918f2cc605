"""How many rows a step of vLLM on a CPU may have without any row coming out in other bits.

The matrix library picks a kernel, and with it how sums are rounded, by shape: with AMX some products of more than 32
rows round unlike smaller ones. A verification of eighty positions must not differ from a rollout for that.
"""

from __future__ import annotations

from typing import Any

import torch


@torch.inference_mode()
def most_rows(model: Any, least: int, most: int) -> int:
    """The most rows, from `least` to `most`, up to which every product of vLLM's `model` treats all rows as it does
    those of a step of `least`, wherever in the step they stand."""
    layers = {_shape(layer): layer for layer in model.modules() if hasattr(layer, "cpu_linear")}
    for shape, layer in layers.items():
        most = _alike(layer, shape[0], least, most)
    return most


def _shape(layer: Any) -> tuple[int, int]:
    """Columns and rows of a layer's weight, which vLLM may have packed away: under other names by kind of layer."""
    columns = ("input_size_per_partition", "input_size", "embedding_dim")
    rows = ("output_size_per_partition", "output_size", "num_embeddings_per_partition")
    return _first(layer, columns), _first(layer, rows)


def _first(layer: Any, names: tuple[str, ...]) -> int:
    return int(next(getattr(layer, name) for name in names if hasattr(layer, name)))


def _alike(layer: Any, columns: int, least: int, most: int) -> int:
    rows = torch.randn(most + least, columns, generator=torch.Generator().manual_seed(0)).to(layer.weight.dtype)

    def product(first: int, last: int) -> torch.Tensor:
        found: torch.Tensor = layer.cpu_linear(rows[first:last].clone(), layer.weight, None)
        return found

    apart = torch.cat([product(first, first + least) for first in range(0, most, least)])
    for count in range(least + 1, most + 1):
        if not torch.equal(product(0, count), apart[:count]):
            return count - 1
    return most
