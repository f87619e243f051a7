"""Hazard: a model of NATS that differs from NATS. The model and a real server get the same requests.

Sequence numbers must agree, so both begin with the same one, and nothing else writes to the bucket.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator

import pytest

from holdfast.backends.nats.port import ABSENT, Entry, Put
from holdfast.backends.nats.protocol.bucket import MARKER_SECONDS, Bucket
from holdfast_lab.sim.servers.nats.store import Store
from tests.support.nats import shared
from tests.support.nats.servers import RawConnection, Server
from tests.support.processes import eventually

KEYS = ("lock.a", "lock.b", "register.c=20d")
FIRST = 1_000


class Sides:
    """A bucket of a real server and its model."""

    def __init__(self, server: Server, connection: RawConnection) -> None:
        self._connection = connection
        self._bucket = Bucket("nats://test", f"test-{uuid.uuid4().hex}")
        self.model = Store(FIRST, MARKER_SECONDS)
        created = server.call(
            f"$JS.API.STREAM.CREATE.{self._bucket.stream}", json.dumps(self._bucket.settings(1, FIRST)).encode()
        )
        self._bucket.check(created["config"], 1)

    def put(self, put: Put) -> tuple[object, object]:
        answer = self._bucket.put_answer(
            self._connection.send_request(lambda reply: self._bucket.put_request(put, reply))
        )
        return answer, self.model.put(put, time.monotonic())

    def get(self, key: str) -> tuple[Entry, Entry]:
        message = self._connection.send_request(lambda reply: self._bucket.get_request(key, reply))
        stored = self.model.entries.get(key)
        return self._bucket.get_answer(message, None), ABSENT if stored is None else Entry(*stored[:3])

    def put_without_header(self, key: str, last: int, seconds: int) -> None:
        """An entry of another program, which has no Nats-Marker-Reason."""
        headers = {"Nats-Expected-Last-Subject-Sequence": last, "Nats-TTL": seconds}
        self._connection.request(self._bucket.subject(key), b"x", headers)
        assert self.model.put(Put(key, b"x", last, seconds), 0.0)


@pytest.fixture
def sides() -> Iterator[Sides]:
    server = shared.server()
    with server.connect() as connection:
        yield Sides(server, connection)


def a_put(rng: random.Random, model: Store) -> Put:
    key = rng.choice(KEYS)
    entry = model.entries.get(key)
    known = 0 if entry is None else entry.seq
    last = rng.choice([known, known, known, 0, FIRST, model.last_seq])
    value = rng.choice([b"", b"{}", b'{"holdfast": 1}', b"\r\n\0\xff"])
    return Put(key, value, last, 3600, is_marker=rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_requests_get_the_same_answers(sides: Sides, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    outcomes = set()
    for number in range(400):
        put = a_put(rng, sides.model)
        real, model = sides.put(put)
        outcomes.add((put.is_marker, real is None))
        assert real == model, f"step {number}: {put}"
        key = rng.choice(KEYS)
        entry, known = sides.get(key)
        assert entry == known, f"step {number}: {key}"
    assert len(outcomes) == 4


def test_an_expired_entry_of_ours_leaves_no_marker_and_one_of_another_program_does(sides: Sides) -> None:
    for key, is_marker in (("lock.a", False), ("lock.b", True)):
        seq, _ = sides.put(Put(key, b"", 0, 1, is_marker=is_marker))
        assert isinstance(seq, int)
        eventually(lambda key=key: sides.get(key)[0] == ABSENT)  # type: ignore[misc]  # untyped default
        sides.model.remove(key, seq)
        assert sides.get(key) == (ABSENT, ABSENT)

    sides.put_without_header("register.c", 0, 1)
    eventually(lambda: sides.get("register.c")[0].is_marker)
    sides.model.replace("register.c", 0.0)
    real, model = sides.get("register.c")
    assert real == model


def test_an_entry_is_not_removed_before_its_ttl(sides: Sides) -> None:
    sent = time.monotonic()
    sides.put(Put("lock.a", b"", 0, 2))

    eventually(lambda: sides.get("lock.a")[0] == ABSENT)

    assert time.monotonic() - sent >= 2.0


def test_a_renewed_entry_survives_the_end_of_the_entry_before_it(sides: Sides) -> None:
    seq, _ = sides.put(Put("lock.a", b"", 0, 1))
    assert isinstance(seq, int)
    renewed, _ = sides.put(Put("lock.a", b"", seq, 3600))
    other, _ = sides.put(Put("lock.b", b"", 0, 2))
    assert other is not None

    eventually(lambda: sides.get("lock.b")[0] == ABSENT)

    entry, _ = sides.get("lock.a")
    assert entry is not None
    assert entry.seq == renewed
