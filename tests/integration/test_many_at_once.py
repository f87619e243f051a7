"""The example that counts: fifty locks are one round trip each way, and opposite callers never wait for each other."""

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


def shown(url: str) -> tuple[tuple[int, int], tuple[int, int]]:
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


def test_fifty_on_redis_are_one_round_trip_each_way() -> None:
    trips, turns = shown(redis.fresh_url())

    assert trips == (1, 1)
    assert min(turns) > 0


def test_fifty_on_postgresql_are_one_round_trip_each_way() -> None:
    trips, turns = shown(postgresql.fresh_url())

    assert trips == (1, 1)
    assert min(turns) > 0


@pytest.mark.parametrize("fresh_url", [mysql.fresh_url, etcd.fresh_url], ids=["mysql", "etcd"])
def test_opposite_callers_elsewhere(fresh_url: object) -> None:
    assert callable(fresh_url)
    _, turns = shown(fresh_url())

    assert min(turns) > 0
