"""Hazard: fifty locks cost more than two round trips, or callers with opposite orders block each other.

The example counts the round trips and the turns.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.etcd import shared as etcd
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis

EXAMPLE = Path(__file__).parents[2] / "examples" / "many_at_once.py"


def run_example(url: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The output of the example: the round trips and the turns."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), url, "--seconds", "1"], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trips = re.search(r"take them: (\d+), to give them back: (\d+)", done.stdout)
    turns = re.search(r"first: (\d+) and (\d+) turns", done.stdout)
    assert trips is not None, done.stdout
    assert turns is not None, done.stdout
    return (int(trips[1]), int(trips[2])), (int(turns[1]), int(turns[2]))


def test_fifty_locks_on_redis_cost_one_round_trip_to_acquire_and_one_to_release() -> None:
    trips, turns = run_example(redis.fresh_url())

    assert trips == (1, 1)
    assert min(turns) > 0


def test_fifty_locks_on_postgresql_cost_one_round_trip_to_acquire_and_one_to_release() -> None:
    trips, turns = run_example(postgresql.fresh_url())

    assert trips == (1, 1)
    assert min(turns) > 0


@pytest.mark.parametrize("fresh_url", [mysql.fresh_url, etcd.fresh_url], ids=["mysql", "etcd"])
def test_callers_with_opposite_orders_do_not_block_each_other(fresh_url: object) -> None:
    assert callable(fresh_url)
    _, turns = run_example(fresh_url())

    assert min(turns) > 0
