"""Hazard: a late request of an earlier ticket deletes the key of a new ticket that reuses its name.

Or two threads get the same name at the same time, and both are granted the lock by the one key.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

from holdfast.backends.etcd.port import Answer
from holdfast.backends.etcd.protocol.keys import Keys, Slots
from holdfast.backends.etcd.protocol.queue import EtcdBackend
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Claim
from holdfast.runtimes.threads import ThreadRuntime


class ParkedPort:
    """Each call waits until the test sends its answer into the coroutine."""

    is_same_cluster = True
    wakeups = Wakeups(ThreadRuntime())

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    async def call(self, *_: object, **__: object) -> Answer:
        return Answer(await Parked(), 0.0)


class Parked:
    def __await__(self) -> Generator[None, Any, Any]:
        return (yield)


def answer(request: Coroutine[Any, Any, Any]) -> None:
    try:
        request.send({"deleted": "1"})
    except StopIteration:
        return
    raise AssertionError("the release has sent another request")


def test_a_key_is_not_reused_while_another_release_of_its_ticket_is_in_flight() -> None:
    keys = Keys("holdfast/", raw_names=False)
    backend = EtcdBackend("etcd://here", ParkedPort(), ThreadRuntime(), keys)
    old, new = (Claim("lock", nonce * 32, 30.0, 1, exclusive=True, agent="", info="{}") for nonce in "ab")
    key = backend._key(old)
    first, second = (backend.release([old], deadline=1.0) for _ in range(2))
    first.send(None)
    second.send(None)

    answer(second)

    assert backend._key(new) != key, (
        "the first release may arrive at any time, and would delete the key of the new ticket"
    )
    answer(first)
    third = backend.release([new], deadline=1.0)
    third.send(None)
    reused = backend._key(new)
    answer(third)
    assert backend._key(old) == reused, "without a second release the key is reused"
    assert not backend._releasing


def test_two_threads_get_different_names_when_one_runs_between_two_lines_of_the_other() -> None:
    slots, others = Slots("0" * 32), list[str]()

    def other_thread(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is Slots.take.__code__ and event == "line":
            others.append(slots.take())
        return other_thread

    before = sys.gettrace()
    sys.settrace(other_thread)
    try:
        own = slots.take()
    finally:
        sys.settrace(before)

    assert others
    assert len({own, *others}) == len(others) + 1, "two tickets with one key hold a lock together"
