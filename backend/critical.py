"""Which critical tokens two campaigns select, both or only one, where their rollouts are the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from backend.comparing import HALF, Side
from backend.credit import ratio


@dataclass(frozen=True)
class CriticalTokens:
    """The critical tokens (|Â| of exact ≥ threshold) of two campaigns, in the text their rollouts have in common.

    Both campaigns sampled that text token for token, so a position there is the same token in the same context.
    """

    threshold: Fraction
    measured: int
    """Pivots of the common text that both campaigns measured: what the next three are counted over."""
    both: int
    only_first: int
    only_second: int
    unmeasured: tuple[int, int]
    """Tokens of the common text that the first (second) campaign selects and the other did not measure."""
    apart: tuple[int, int]
    """Tokens that the first (second) campaign selects where the texts are no longer the same."""
    rows: pd.DataFrame
    """The selected tokens that both measured. Columns: problem (number), rollout, position, first, second (integer
    numerators over each side's k) and `selected_by` (both, first, second); the largest |Â| first."""

    @property
    def jaccard(self) -> float | None:
        """both / either; None where neither selects any."""
        return ratio(self.both, self.both + self.only_first + self.only_second)

    @property
    def chance(self) -> float | None:
        """What two random sets of these sizes would share: (ab/M)/(a+b−ab/M)."""
        a, b = self.both + self.only_first, self.both + self.only_second
        return ratio(a * b, (a + b) * self.measured - a * b)


def critical_tokens(first: Side, second: Side, common: pd.DataFrame, threshold: Fraction = HALF) -> CriticalTokens:
    """Which critical tokens both campaigns select and which only one.

    `common` has a row a rollout that both hold: problem (number), rollout, and `common`, the length of the token ids
    (prompt included) that the two rollouts begin with alike.
    """
    keys = ["problem", "rollout", "position"]
    frames = [_pivots(side, threshold) for side in (first, second)]
    pairs = frames[0].merge(frames[1], on=keys, how="outer", suffixes=("_first", "_second"))
    pairs = pairs.merge(common, on=["problem", "rollout"], how="left")
    alike = (pairs["position"] < pairs["common"].fillna(0)).to_numpy()
    held = [pairs[f"value_{name}"].notna().to_numpy() for name in ("first", "second")]
    chosen = [pairs[f"selected_{name}"].fillna(False).to_numpy(dtype=np.bool_) for name in ("first", "second")]
    measured = alike & held[0] & held[1]
    either = measured & (chosen[0] | chosen[1])
    rows = pd.DataFrame(
        {
            **{key: pairs[key][either].to_numpy() for key in keys},
            "first": pairs["value_first"][either].to_numpy(dtype=np.int64),
            "second": pairs["value_second"][either].to_numpy(dtype=np.int64),
            "selected_by": np.select([chosen[0] & chosen[1], chosen[0]], ["both", "first"], "second")[either],
        }
    )
    size = np.maximum(abs(rows["first"]) / first.credits.k, abs(rows["second"]) / second.credits.k)
    order = np.lexsort([rows["position"], rows["rollout"], rows["problem"], -size])
    return CriticalTokens(
        threshold,
        measured=int(measured.sum()),
        both=int((measured & chosen[0] & chosen[1]).sum()),
        only_first=int((measured & chosen[0] & ~chosen[1]).sum()),
        only_second=int((measured & ~chosen[0] & chosen[1]).sum()),
        unmeasured=(int((alike & chosen[0] & ~held[1]).sum()), int((alike & chosen[1] & ~held[0]).sum())),
        apart=(int((~alike & chosen[0]).sum()), int((~alike & chosen[1]).sum())),
        rows=rows.iloc[order].reset_index(drop=True),
    )


def _pivots(side: Side, threshold: Fraction) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "problem": side.credits.cluster,
            "rollout": side.rollout,
            "position": side.position,
            "value": side.credits.passes["exact"],
            "selected": pd.array(side.selects("exact", threshold), dtype="boolean"),
        }
    )


def common_prefix(first: Sequence[bytes], second: Sequence[bytes]) -> tuple[int, int] | None:
    """Where two texts first differ: the index of each one's token that holds the first differing byte.

    The token lists may cut their texts differently. None for equal texts; an index equal to its list's length where
    that text ends first.
    """
    whole = [b"".join(tokens) for tokens in (first, second)]
    length = min(len(text) for text in whole)
    mine, theirs = (np.frombuffer(text[:length], dtype=np.uint8) for text in whole)
    differing = np.flatnonzero(mine != theirs)
    if not differing.size and len(whole[0]) == len(whole[1]):
        return None
    at = int(differing[0]) if differing.size else length
    ends = (np.cumsum([len(token) for token in tokens]) for tokens in (first, second))
    here, there = (int(np.searchsorted(end, at, side="right")) for end in ends)
    return here, there
