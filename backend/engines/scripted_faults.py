"""What the scripted engine does wrong when a campaign file asks for it in `engine_options`:

- `noise`, `fewer_cached`, `warm`, `preemptions`, `dropped`: a table from a source to an amount. The source is `exact`,
  `refeed` or (noise only) `rebuild`; `exact:2` means only the second time the same request is made, which is how one
  pass alone is hit. Noise is the largest change of a logprob in nats; `fewer_cached` and `warm` are tokens; `dropped`
  counts requests lost.
- `altered_logprob = n`: the n-th verified point comes back with one logprob moved by one unit in the last place.
- `altered_tail = n`: the n-th resumed request says that a recorded token came out so when it was decoded again.
- `facts_change = n`: after n continuation calls the engine describes itself differently.
- `fail_on = "text"`: sampling rollouts of a prompt that contains the text raises an error.
- `memory_requests = n`: a call with more requests than n runs out of memory.
- `delay = s`: seconds that each step takes.
- `hold = "FILE"`: while the file exists and says `rollouts 2`, the second call for rollouts waits, and later ones do;
  `exact 4` and `refeed 1` are calls for continuations. So a kill or a look meets the run exactly there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.engines.options import check_type, kind_of
from backend.errors import UserError

Table = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """What shall go wrong; see the module's description."""

    noise: Table = field(default_factory=dict)
    fewer_cached: Table = field(default_factory=dict)
    warm: Table = field(default_factory=dict)
    preemptions: Table = field(default_factory=dict)
    dropped: Table = field(default_factory=dict)
    altered_logprob: int = 0
    altered_tail: int = 0
    facts_change: int = 0
    fail_on: str = ""
    memory_requests: int = 0
    delay: float = 0.0
    hold: str = ""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Faults:
        """Options as a campaign file gives them. Raises `UserError` for an unknown or wrong one."""
        kinds = {name: type(getattr(cls(), name)) for name in cls.__dataclass_fields__}
        for name, value in options.items():
            kind = kind_of(name, kinds, "scripted")
            if kind is dict:
                _check_table(name, value)
            else:
                check_type(name, value, kind)
        return cls(**options)

    def holds(self, kind: str, calls: int) -> bool:
        """Whether the `calls`-th call of a kind has to wait."""
        try:
            held, _, number = Path(self.hold).read_text(encoding="utf-8").partition(" ")
            return held == kind and calls >= int(number)
        except (OSError, ValueError):
            return False  # no such file, or one that is just being written


def _check_table(name: str, value: Any) -> None:
    sources = ("exact", "refeed", "rebuild") if name == "noise" else ("exact", "refeed")
    if not isinstance(value, Mapping):
        raise UserError(f"engine_options: `{name}` is {value!r}, but must be a table such as {{ refeed = 1 }}")
    for key, number in value.items():
        source, _, visit = str(key).partition(":")
        if source not in sources or (visit and not visit.isdecimal()):
            raise UserError(
                f"engine_options: `{name}.{key}` is not one of {', '.join(sources)}, or one with `:n` after it"
            )
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise UserError(f"engine_options: `{name}.{key}` is {number!r}, but must be a number")


def amount(table: Table, source: str, visit: int) -> float:
    """How much of a fault meets the `visit`-th time that a request is made of a source; 0 where none was asked for."""
    return table.get(f"{source}:{visit}", table.get(source, 0))
