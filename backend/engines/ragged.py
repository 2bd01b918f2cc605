"""Kept KV state and the one attention path that every decode step takes.

Rows of a step have different lengths. Padding them to one length, or masking, would change the arithmetic with the
company a row keeps; instead rows that share a prefix form a group of equal length with tensors of its own, the linear
layers see all rows of the step at once, and attention runs group by group without a mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

ATTENTION = "pivotscope_ragged"
"""Name under which `attention` is registered with transformers."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values a layer, each [rows, kv heads, tokens, head size]."""


class Group:
    """Rows with a common length, and their KV tensors with room to grow."""

    def __init__(self, prefix: Layers, rows: int, capacity: int) -> None:
        """`prefix` holds one row, repeated `rows` times, or exactly `rows`; `capacity` is the longest length."""
        self.length = prefix[0][0].shape[2]
        self.rows = rows
        self.layers: Layers = []
        for keys, values in prefix:
            self.layers.append((self._room(keys, capacity), self._room(values, capacity)))

    def _room(self, tensor: Tensor, capacity: int) -> Tensor:
        _, heads, length, size = tensor.shape
        room = tensor.new_empty((self.rows, heads, max(capacity, length), size))
        room[:, :, :length] = tensor
        return room

    def keep(self, rows: list[int]) -> None:
        """Drop all but the given rows."""
        index = torch.tensor(rows, device=self.layers[0][0].device)
        self.layers = [(keys[index], values[index]) for keys, values in self.layers]
        self.rows = len(rows)

    def state(self, row: int, length: int) -> Layers:
        """A copy of one row's first `length` tokens."""
        return [
            (keys[row : row + 1, :, :length].clone(), values[row : row + 1, :, :length].clone())
            for keys, values in self.layers
        ]


def cut(layers: Layers, length: int) -> Layers:
    """The first `length` tokens, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in layers]


def size_of(layers: Layers) -> int:
    """Bytes the tensors hold."""
    return sum(tensor.numel() * tensor.element_size() for pair in layers for tensor in pair)


class StepCache:
    """What a model takes for its cache in one decode step over several groups, and what attention reads from it."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Append the step's [rows, kv heads, 1, size] to each group; rows beyond the groups' are fill and not kept."""
        start, grown = 0, []
        for group in self.groups:
            kept_keys, kept_values = group.layers[layer]
            end = start + group.rows
            kept_keys[:, :, group.length : group.length + 1] = keys[start:end]
            kept_values[:, :, group.length : group.length + 1] = values[start:end]
            grown.append((kept_keys[:, :, : group.length + 1], kept_values[:, :, : group.length + 1]))
            start = end
        return [pair[0] for pair in grown], [pair[1] for pair in grown]

    def get_seq_length(self, *_: Any) -> int:
        return max(group.length for group in self.groups)

    def advance(self) -> None:
        """One token was appended everywhere."""
        for group in self.groups:
            group.length += 1


class PrefillCache:
    """Collects the KV of a cold prefill of one sequence."""

    def __init__(self) -> None:
        self.layers: Layers = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.layers.append((keys, values))
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0


def attention(
    module: torch.nn.Module, query: Tensor, keys: Any, values: Any, _mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Attention of a step (`keys` from `StepCache`: one tensor a group) or of a prefill (one tensor).

    `query` is [rows, heads, tokens, size]; returns [rows, tokens, heads, size].
    """
    if isinstance(keys, Tensor):
        out = functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != keys.shape[1]
        )
        return out.transpose(1, 2), None
    rows, heads, _one, size = query.shape
    out = query.new_zeros((rows, heads, 1, size))
    start = 0
    for group_keys, group_values in zip(keys, values, strict=True):
        n, kv_heads = group_keys.shape[:2]
        # The query heads that share a KV head stand where the kernel expects query tokens: no repeated keys, and
        # without a mask each of them attends to the whole row.
        folded = query[start : start + n].reshape(n, kv_heads, heads // kv_heads, size)
        found = functional.scaled_dot_product_attention(folded, group_keys, group_values, scale=scaling)
        out[start : start + n] = found.reshape(n, heads, 1, size)
        start += n
    return out.transpose(1, 2), None
