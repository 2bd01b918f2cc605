"""Rows of a step: how many, without any row coming out in other bits than in another step.

A matrix library picks a kernel, and with it how sums are rounded, by shape. On a CPU with AMX some products of more
than 32 rows round unlike smaller ones; on a GPU those of float32 do so at many counts. A verification of eighty
positions must not differ from a rollout for that.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional


@torch.inference_mode()
def most_rows(model: Any, least: int, most: int) -> int:
    """The most rows, from `least` to `most`, up to which every product of vLLM's `model` treats all rows as it does
    those of a step of `least`, wherever in the step they stand."""
    layers = {_shape(layer): layer for layer in model.modules() if hasattr(layer, "cpu_linear")}
    for shape, layer in layers.items():
        most = _alike(layer, shape[0], least, most)
    return most


def fill_up_logits(model: Any, rows: int) -> None:
    """Let the product of vLLM's `model` that gives the logits always have so many rows, as its graphs do by themselves.

    vLLM takes it outside of them, over the rows that are to be sampled.
    """
    compute = model.compute_logits

    def filled_up(hidden: torch.Tensor, *rest: Any, **more: Any) -> Any:
        missing = rows - len(hidden)
        if missing <= 0:
            return compute(hidden, *rest, **more)
        return compute(functional.pad(hidden, (0, 0, 0, missing)), *rest, **more)[: len(hidden)]

    model.compute_logits = filled_up


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
