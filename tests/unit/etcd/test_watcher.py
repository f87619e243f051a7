"""Hazard: watches that the gateway has dropped, because it had started to answer, count as active."""

from __future__ import annotations

from typing import Any, cast

from holdfast.backends.etcd.io.watcher import CONFIRMED_MAX, WATCHES_MAX, WatchStream, _batches
from holdfast.backends.etcd.port import Watch

WATCHES = {name: (Watch(name.encode(), 1), Watch(b"own " + name.encode(), 1)) for name in ("a", "b", "c")}


def active_watches(stream: WatchStream, now: float) -> list[str]:
    return [nonce for nonce, _ in stream.active_watches(now)]


def test_a_watch_is_active_after_its_time_only_when_confirmed() -> None:
    stream = WatchStream(cast("Any", None), dict(WATCHES), opened=10.0)
    assert active_watches(stream, 10.0 + CONFIRMED_MAX / 2) == ["a", "b", "c"]

    for _ in range(3):  # of six watches: both of the first ticket, and one of the second
        stream.confirmed(10.1)

    assert active_watches(stream, 10.1 + CONFIRMED_MAX / 2) == ["a", "b", "c"]
    assert active_watches(stream, 10.1 + CONFIRMED_MAX) == ["a"]
    assert not stream.is_confirmed


def test_a_confirmed_watch_stays_active() -> None:
    stream = WatchStream(cast("Any", None), dict(WATCHES), opened=10.0)
    for _ in range(6):
        stream.confirmed(10.0)

    assert stream.is_confirmed
    assert active_watches(stream, 1000.0) == ["a", "b", "c"]


def test_many_watches_use_several_streams_and_those_of_a_ticket_stay_together() -> None:
    many = {f"{number}": WATCHES["a"] for number in range(WATCHES_MAX)}

    parts = list(_batches(many))

    assert [sum(map(len, part.values())) for part in parts] == [WATCHES_MAX, WATCHES_MAX]
    assert {nonce for part in parts for nonce in part} == set(many)
    assert list(_batches({})) == []
