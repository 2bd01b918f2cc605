"""Rollouts whose KV blocks vLLM keeps, and the requests that resume them.

vLLM finds full blocks only. A prefix of any length is resumed by prompting with the ids up to the first token after the
last full block, and forcing the rest through decode steps like those that wrote it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.engines.base import ContinuationRequest, Sampling
from backend.engines.vllm_parts import parts
from backend.errors import UserError

if TYPE_CHECKING:
    from backend.engines.vllm_steps import Outcome, Request

NEXT = Sampling(temperature=0.0, top_p=1.0, max_tokens=1)
"""Of requests whose next-token distribution is wanted."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A rollout whose blocks were written by decoding."""

    salt: str | None
    """What its blocks are found under; None once they are lost."""
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    """Of `ids`, nats, as they came out when the blocks were written."""

    @property
    def written(self) -> int:
        """Tokens whose keys and values were computed: all but the last, which was never fed."""
        return len(self.prompt_ids) + len(self.ids) - 1

    @property
    def line(self) -> list[int]:
        """Prompt and generated ids."""
        return self.prompt_ids + self.ids


class States:
    """What is kept under which handle. `block` is the number of tokens of a KV block."""

    def __init__(self, block: int, request: type[Request]) -> None:
        self._block, self._request = block, request
        self._kept: dict[str, Kept] = {}
        self._salts = itertools.count()

    def salt(self, what: str) -> str:
        """A salt that nothing was written under."""
        return f"{next(self._salts)}:{what}"

    def keep(self, handle: str, state: Kept) -> None:
        """Remember a state under a handle, in place of a former one."""
        self._kept[handle] = state

    def drop(self, handles: Iterable[str]) -> None:
        """Forget the handles' salts, without which their blocks are never found again and fall to eviction."""
        for handle in handles:
            self._kept.pop(handle, None)

    def __contains__(self, handle: object) -> bool:
        return handle in self._kept

    def prefix(self, handle: str, position: int) -> tuple[Kept, list[int]]:
        """A kept rollout and its ids before `position`. Raises `UserError` where there is none."""
        kept = self._kept.get(handle)
        if kept is None:
            raise UserError(f"no state is kept under the handle `{handle}`; sample or rebuild the rollout first")
        start, end = len(kept.prompt_ids), len(kept.prompt_ids) + len(kept.ids)
        if not start <= position <= end:
            raise UserError(f"position {position} of `{handle}` is not between {start} and {end}")
        return kept, kept.line[:position]

    def expected(self, handle: str, prompt: int) -> int:
        """Tokens vLLM finds for a prompt of a length: full blocks but the last token's, as the rollout wrote them."""
        return min(prompt - 1, self._kept[handle].written) // self._block * self._block

    def tail_difference(self, handle: str, sent: Request, logprobs: Sequence[float]) -> float | None:
        """How far the `logprobs` of a request's forced tokens lie from those of the decode that wrote the blocks.

        The largest |difference| in nats over the rollout's own tokens among them, 0.0 only where all are the same bit
        for bit; None where there is none.
        """
        kept = self._kept[handle]
        first = len(sent.prompt) - len(kept.prompt_ids)
        again = zip(sent.forced, logprobs, kept.ids[first:], kept.logprobs[first:], strict=False)
        return max((abs(a - b) if a != b else 0.0 for token, a, own, b in again if token == own), default=None)

    def resuming(
        self, handle: str, line: list[int], seed: int, sampling: Sampling, top_k: int, stops: list[int]
    ) -> Request:
        """The request that finds what the rollout wrote of `line` but its last token, and decodes the rest."""
        kept = self._kept[handle]
        cut = max((len(line) - 1) // self._block * self._block, len(kept.prompt_ids) - 1) + 1
        found = self.expected(handle, cut) if kept.salt else 0
        # What is missing of the prompt was prefilled, be it one token; a generated token was decoded.
        prefill = 0 if found >= len(kept.prompt_ids) else cut - found
        salt = kept.salt or self.salt("lost")
        return self._request(line[:cut], line[cut:], salt, seed, sampling, top_k, stops, prefill)

    def parts(self, requests: Sequence[ContinuationRequest], capacity: int) -> list[slice]:
        """Stretches of requests, after each of which a cache of `capacity` tokens has all kept states."""
        # `touch` takes a block for the token that it decodes.
        room = capacity - sum(self.in_blocks(kept.written) + self._block for kept in self._kept.values())
        costs = [
            self.in_blocks(one.position + 1 + one.sampling.max_tokens) - self.expected(one.handle, one.position + 1)
            for one in requests
        ]
        return list(parts(costs, room))

    def touch(self, run: Callable[[list[Request]], list[Outcome | None]]) -> None:
        """Use the full blocks of all states, so that vLLM counts them among the latest used.

        A state that was evicted is computed anew by that, as a prefill. Its salt is given up, so that whatever resumes
        it finds nothing, and says so, instead of what no decode step wrote.
        """
        held = {name: kept for name, kept in self._kept.items() if kept.salt}
        full = [kept.written // self._block * self._block for kept in held.values()]
        sent = [
            self._request(kept.line[: found + 1], [], str(kept.salt), 0, NEXT, 0, [])
            for kept, found in zip(held.values(), full, strict=True)
        ]
        for (name, kept), found, outcome in zip(held.items(), full, run(sent), strict=True):
            if outcome is None or outcome.cached != found:
                self._kept[name] = replace(kept, salt=None)

    def in_blocks(self, tokens: int) -> int:
        """Tokens rounded up to full blocks."""
        return -(-tokens // self._block) * self._block
