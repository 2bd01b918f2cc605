"""Which row counts of a decode step give a row the same bits.

A matrix library picks its kernel by shape: one row and two rows of the same numbers can come out different, and on some
devices so can 8 and 64. Exact resume must not depend on how busy a step was, so the engine finds out at start.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.engines.decoding import Forward
from backend.engines.ragged import Group, Layers, StepCache, cut


@torch.inference_mode()
def equal_classes(forward: Forward, prefix: Layers, candidates: Sequence[int], device: torch.device) -> list[int]:
    """Those `candidates` under which a row's logits equal those under the first of them, bit for bit.

    A probe row stands first, in the middle and last among rows of other lengths and tokens, so that neither place nor
    company goes unnoticed: a kernel that takes rows by sixes treats the last two of 14 otherwise than the last of 16.
    """
    reference: Tensor | None = None
    kept = []
    for rows in candidates:
        found = _probe_logits(forward, prefix, rows, device)
        reference = found[0] if reference is None else reference
        if all(torch.equal(reference, logits) for logits in found):
            kept.append(rows)
    return kept or [candidates[0]]


def _probe_logits(forward: Forward, prefix: Layers, rows: int, device: torch.device) -> list[Tensor]:
    length = prefix[0][0].shape[2]
    places = (0, rows // 2, rows - 1)
    lengths = [length if i in places else 5 + (7 * i) % (length - 5) for i in range(rows)]
    ids = [17 if i in places else 100 + 13 * i for i in range(rows)]
    groups = [Group(cut(prefix, n), 1, n + 1) for n in lengths]
    column = torch.tensor(ids, device=device)[:, None]
    positions = torch.tensor(lengths, device=device)[:, None]
    logits = forward(column, positions, StepCache(groups))
    return [logits[i] for i in places]
