"""Hazard: a model of memcached that differs from memcached. The model and a real server get the same bytes.

The coarse clock of the real server is read before and after each step and set in the model, so expiries must agree
to the second. Versions grow by the same rule on both sides, but a real server may skip some, so they are translated.
"""

from __future__ import annotations

import copy
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.memcached.protocol.values import FREE, value_of
from holdfast_lab.sim.servers.memcached.machine import _STARTS_AT, Machine
from tests.support.memcached.servers import RawConnection, Server
from tests.support.server_process import running

KEYS = (b"a", b"b", b"c%20d", b"k" * 250)


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as started:
        yield started


class Sides:
    """A real server and its model."""

    def __init__(self, connection: RawConnection) -> None:
        self.real = connection
        facts = connection.call(meta.STATS).stats()
        self.model = Machine(int(facts["time"]) - int(facts["uptime"]), int(facts["pid"]))
        self._real_version = {0: 0}  # by the version of the model

    def step(self, request: bytes) -> tuple[Reply, Reply]:
        """The replies of the real server and of the model, the latter with the versions of the real server."""
        translated = re.sub(
            rb"\A(m[sd] \S+(?: \d+)?) C(\d+)",
            lambda match: b"%b C%d" % (match[1], self._real_version.get(int(match[2]), 0)),
            request,
        )
        before = self._time()
        real = self.real.call(translated)
        after = self._time()
        model, shown = self._at(before, request, real)
        if shown != real and after != before:  # the clock ticked before the step, not after it
            model, shown = self._at(after, request, real)
        self.model = model
        if after != before and request.startswith(b"ms") and real.code == "HD":
            # The server stored the item before or after the tick, so its expiry is unknown: delete the item.
            delete = b"md %b\r\n" % request.split()[1]
            self.real.call(delete)
            self.model.respond(delete)
        return real, shown

    def _at(self, now: int, request: bytes, real: Reply) -> tuple[Machine, Reply]:
        model = copy.deepcopy(self.model)
        model.time = now
        answer = _parsed(model.respond(request))
        if request.startswith(b"ms") and real.code == answer.code == "HD":
            self._real_version[answer.version] = real.version
        return model, replace(answer, version=self._real_version.get(answer.version, -1))

    def _time(self) -> int:
        return int(self.real.call(meta.STATS).stats()["uptime"]) + _STARTS_AT


def _parsed(data: bytes) -> Reply:
    parser = Parser()
    parser.feed(data)
    reply = parser.next_reply()
    assert reply is not None
    assert not parser.has_data
    return reply


def a_request(rng: random.Random, model: Machine) -> bytes:
    key = rng.choice(KEYS)
    item = model.items.get(key)
    known = item.version if item is not None else 0
    version = rng.choice([known, known, known, 1, model.version + 1]) or 1
    value = rng.choice(
        [FREE, value_of("n" * 32, 0, b"1\nagent\n{}\na"), value_of("m" * 32, 7, b"\r\n"), b"holdfast:mark:7:m", b""]
    )
    seconds = rng.choice([0, 1, 2, 3, 60, 2592000, 2592001])
    return rng.choice(
        [
            meta.add(key, seconds, value),
            meta.replace(key, version, seconds, value),
            meta.delete(key, version),
            meta.read(key),
            b"mg %b s t c\r\n" % key,
            b"md %b\r\n" % key,
            b"ms %b %d T%d c\r\n%b\r\n" % (key, len(value), seconds, value),
            b"mn\r\n",
        ]
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extra) for seed in (1, 2, 3))])
def test_the_same_requests_get_the_same_replies(server: Server, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    with server.connect() as connection:
        sides = Sides(connection)
        codes = set()
        for number in range(1500):
            request = a_request(rng, sides.model)
            real, model = sides.step(request)
            codes.add((request[:2], real.code))

            assert model == real, f"step {number}: {request!r}"
    assert codes >= {
        *((b"ms", code) for code in ("HD", "NS", "EX", "NF")),
        *((b"md", code) for code in ("HD", "EX", "NF")),
        *((b"mg", code) for code in ("VA", "HD", "EN")),
    }


def test_items_expire_at_the_same_tick(server: Server) -> None:
    with server.connect() as connection:
        sides = Sides(connection)
        for seconds in (1, 2, 3):
            sides.step(meta.add(b"t%d" % seconds, seconds, b"x"))

        alive = 3
        until = time.monotonic() + 6
        while alive and time.monotonic() < until:
            alive = 0
            for seconds in (1, 2, 3):
                real, model = sides.step(meta.read(b"t%d" % seconds))
                assert model == real
                alive += real.code == "VA"
    assert not alive


def test_the_stats_of_the_server_are_the_same(server: Server) -> None:
    with server.connect() as connection:
        sides = Sides(connection)
        sides.step(meta.add(b"a%20b", 60, b"x"))
        for request in (meta.STATS, meta.SETTINGS):
            real, model = connection.call(request).stats(), _parsed(sides.model.respond(request)).stats()
            shared = [name for name in model if name not in {"uptime", "time"}]

            assert {name: real[name] for name in shared} == {name: model[name] for name in shared}
        real, model = connection.call(meta.STATS).stats(), _parsed(sides.model.respond(meta.STATS)).stats()
        assert int(real["time"]) - int(real["uptime"]) == int(model["time"]) - int(model["uptime"])

        dumped, known = connection.call(meta.DUMP).lines, _parsed(sides.model.respond(meta.DUMP)).lines
        assert [line.split()[0] for line in dumped] == [line.split()[0] for line in known] == [b"key=a%2520b"]
