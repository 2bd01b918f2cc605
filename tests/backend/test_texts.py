"""Ids become bytes and text through the engine, each id asked for once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from backend.engines.base import Quiet
from backend.engines.scripted_engine import ScriptedEngine
from backend.engines.scripted_model import END, START, TURN
from backend.replay import ReplaySettings, replay
from backend.texts import Texts
from tests.backend.play import MIXED, campaign_settings, sampled


class Asked(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__("toy", "float32")
        self.asked: list[int] = []

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        self.asked += ids
        return super().token_bytes(ids)


def test_special_tokens_are_left_out_and_split_characters_come_together() -> None:
    texts = Texts(Asked())
    ids = [START, *"a→".encode(), TURN, ord("b"), END]
    texts.learn(ids)
    assert texts.written(ids) == "a→b".encode()
    assert texts.text(ids) == "a→b"
    assert texts.text([0xE2, 0x86]) == "�"


def test_each_id_is_asked_for_once() -> None:
    engine = Asked()
    texts = Texts(engine)
    texts.learn([3, 1, 3])
    texts.learn([1, 2])
    assert engine.asked == [1, 3, 2]


def test_a_records_tokens_are_all_that_occur() -> None:
    engine = Asked()
    cuts = sampled(engine, MIXED)
    found = replay(engine, cuts, ReplaySettings.of(campaign_settings()), Quiet())
    rollout = cuts[0].rollout
    pivot = cuts[0].pivot
    pivot.measurements.append(found["refeed"][0])
    rollout.pivots.append(pivot)
    expected = {
        *rollout.prompt_ids,
        *rollout.ids,
        *chain.from_iterable(rollout.topk_ids),
        pivot.actual,
        pivot.alternative,
    }
    expected |= {token for one in found["refeed"][0].continuations for token in one.ids}
    tokens = Texts(engine).tokens([rollout])
    assert [token.id for token in tokens] == sorted(expected)
    assert [token.bytes for token in tokens] == engine.token_bytes([token.id for token in tokens])
