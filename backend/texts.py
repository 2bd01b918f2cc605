"""Token ids to text through an engine's own bytes, each id asked for once."""

from __future__ import annotations

from collections.abc import Iterable

from backend.engines.base import Engine
from backend.records import Rollout, TokenText


class Texts:
    """The bytes of the token ids met so far.

    `learn` and `tokens` may ask the engine; `written` and `text` only read, so another thread may use them while the
    engine works.
    """

    def __init__(self, engine: Engine) -> None:
        info = engine.info()
        self._engine = engine
        self._unwritten = frozenset(info.special_ids) | frozenset(info.eos_ids)
        self._bytes: dict[int, bytes] = {}

    def learn(self, ids: Iterable[int]) -> None:
        """Make ids known."""
        unknown = sorted(set(ids).difference(self._bytes))
        if unknown:
            self._bytes.update(zip(unknown, self._engine.token_bytes(unknown), strict=True))

    def written(self, ids: Iterable[int]) -> bytes:
        """The bytes of known ids in a row; special and end-of-sequence tokens are left out."""
        return b"".join([self._bytes[token] for token in ids if token not in self._unwritten])

    def text(self, ids: Iterable[int]) -> str:
        """`written` as text, with � where bytes are no UTF-8."""
        return self.written(ids).decode(errors="replace")

    def tokens(self, rollouts: Iterable[Rollout]) -> list[TokenText]:
        """Every token id that occurs in the rollouts, ascending, with its bytes; unknown ones are learnt."""
        ids: set[int] = set()
        for rollout in rollouts:
            ids.update(rollout.prompt_ids, rollout.ids, *rollout.topk_ids)
            for pivot in rollout.pivots:
                ids |= pivot.tokens
                for measurement in pivot.measurements:
                    ids.update(*[one.ids for one in measurement.continuations])
        self.learn(ids)
        return [TokenText(token, self._bytes[token]) for token in sorted(ids)]

    def known(self, ids: Iterable[int]) -> dict[int, bytes]:
        """The bytes of those ids that were learnt."""
        return {token: self._bytes[token] for token in ids if token in self._bytes}
