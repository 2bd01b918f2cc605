"""A campaign's settings: the TOML file, its defaults, and the sentences that refuse a wrong one."""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from backend.errors import UserError
from backend.records import Pass


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemSettings(_Section):
    """Which problems a campaign runs over."""

    set: str | None = None
    """A bundled set (`arithmetic`), `gsm8k`, or `hf:<data set id>`."""
    file: str | None = None
    """A JSONL file instead of a set."""
    first: Annotated[int, Field(ge=0)] = 0
    """Index of the first problem."""
    count: Annotated[int, Field(ge=1)] = 30
    """Problems kept, after the screen."""
    screen: bool = False
    """Keep only problems whose rollouts are neither all right nor all wrong."""
    scan_limit: Annotated[int, Field(ge=1)] | None = None
    """Most problems looked at by the screen; default 10 × count."""

    @model_validator(mode="after")
    def _one_source(self) -> ProblemSettings:
        if (self.set is None) == (self.file is None):
            raise ValueError("give either `set` or `file`")
        return self

    @property
    def limit(self) -> int:
        """Most problems that may be looked at."""
        if not self.screen:
            return self.count
        return self.scan_limit if self.scan_limit is not None else 10 * self.count


class CampaignSettings(_Section):
    """One configuration over many problems. Every key but the first three has a default; unknown keys are refused."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f/\\]+$")]
    """What people call it; resuming is running the same name again."""
    model: Annotated[str, Field(min_length=1)]
    """A name of the model library, a folder, or a hub id."""
    engine: Literal["transformers", "vllm", "scripted"]
    """`scripted` plays a written-down model for tests."""
    problems: ProblemSettings = ProblemSettings(set="arithmetic")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    rollouts: Annotated[int, Field(ge=1, le=256)] = 8
    """Rollouts sampled a problem."""
    k: Annotated[int, Field(ge=1, le=256)] = 4
    """Continuations an arm."""
    passes: Annotated[tuple[Pass, ...], Field(min_length=1)] = ("exact", "replica", "refeed")
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.7
    """Of rollouts and continuations."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    margin_below: Annotated[float, Field(gt=0)] = 1.0
    """Pivot filter: raw logprob margin in nats must be below this."""
    max_pivots_per_rollout: Annotated[int, Field(ge=1)] = 5
    boundary_slack: Annotated[int, Field(ge=-1, le=15)] = -1
    """−1: any position; s ≥ 0: only positions with position % 16 ≤ s, in rollouts of at least one block."""
    max_rollout_tokens: Annotated[int, Field(ge=1, le=32768)] = 512
    max_continuation_tokens: Annotated[int, Field(ge=1, le=32768)] = 400
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Added to every derived seed modulo 2³¹."""
    batch_invariant: bool = False
    engine_options: dict[str, Any] = {}
    """Passed to the engine; it refuses options it does not know."""
    worker_python: str | None = None
    """Interpreter for the engine process, where it differs from this one's."""

    @model_validator(mode="after")
    def _coherent(self) -> CampaignSettings:
        if "exact" not in self.passes:
            raise ValueError("passes: `exact` is the estimate and cannot be left out")
        if len(set(self.passes)) != len(self.passes):
            raise ValueError("passes: each pass may be named once")
        if self.temperature == 0 and self.k != 1:
            raise ValueError(f"k: greedy continuations (temperature 0) are all the same, so k must be 1, not {self.k}")
        return self

    def document(self) -> str:
        """The settings as canonical JSON."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    @property
    def campaign(self) -> str:
        """The campaign's id, a hash of its name: running the same name again is resuming."""
        return hashlib.sha256(f"campaign|{self.name}".encode()).hexdigest()[:12]

    def differences(self, other: CampaignSettings) -> list[str]:
        """What differs, one `key: mine, other` each."""
        mine, theirs = self.model_dump(mode="json"), other.model_dump(mode="json")
        return [f"{key}: {mine[key]!r}, not {theirs[key]!r}" for key in mine if mine[key] != theirs[key]]


def load_settings(path: Path) -> CampaignSettings:
    """Read a campaign file. Raises `UserError` naming the file and the line or key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a campaign file in TOML") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; give a campaign file in TOML") from None
    return parse_settings(text, str(path))


def parse_settings(text: str, where: str) -> CampaignSettings:
    """Settings from TOML text; `where` is how an error names the source."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not valid TOML, {str(error)[:1].lower()}{str(error)[1:]}") from None
    return make_settings(data, where)


def make_settings(data: dict[str, Any], where: str) -> CampaignSettings:
    """Settings from plain data, with the first fault as one sentence."""
    try:
        return CampaignSettings.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        section = ProblemSettings if key.startswith("problems.") else CampaignSettings
        near = difflib.get_close_matches(str(fault["loc"][-1]), section.model_fields, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else f"; known keys are {', '.join(section.model_fields)}"
        return f"unknown key `{key}`{hint}"
    if fault["type"] == "missing":
        return f"key `{key}` is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key + ': ' if key else ''}{message}"
    return f"key `{key}` is {fault['input']!r}: {message[:1].lower()}{message[1:]}"


def to_toml(settings: CampaignSettings) -> str:
    """The settings as a campaign file that `parse_settings` reads back to the same settings."""
    data = settings.model_dump(mode="json", exclude_none=True)
    return "".join(f"{key} = {_toml(value)}\n" for key, value in data.items())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, float) and value != int(value):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
