"""What ships belongs together: the adapters, their cards, and the campaigns of their models."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from backend import adapters
from backend.models import DEFAULT_MODEL, PACKAGED

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo"


@pytest.mark.parametrize("name", ["smollm2-135m-sft", "smollm2-135m-grpo"])
def test_a_shipped_model_ends_its_answers_where_it_was_trained_to(name: str) -> None:
    adapter = adapters.shipped()[name]
    adapters.verify(adapter)
    query = """
        SELECT r.ids[-1] AS id, count(*) FROM (SELECT unnest(rollouts) AS r FROM read_parquet(?))
        WHERE r.finish_reason = 'stop' GROUP BY id
    """
    bundle = DEMO / f"{name.replace('-135m', '')}.parquet"
    ends = dict(duckdb.connect().execute(query, [str(bundle)]).fetchall())
    assert set(ends) <= {adapter.end, PACKAGED[adapter.base].eos_id}
    assert sum(ends.values()) > 390, ends  # of 400 rollouts


def test_the_default_model_ships() -> None:
    assert DEFAULT_MODEL in {*PACKAGED, *adapters.shipped()}
