"""A signal handler or a finaliser uses the client at any point of another call of the same thread.

The tracer calls the client again at every bytecode of the engine, the keeper and the store that a call runs through,
which is more often than CPython runs signal handlers and finalisers.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from tests.support.processes import eventually

MODULES = (
    "core/engine.py",
    "core/keeper.py",
    "core/notifications.py",
    "core/locks.py",
    "memory/port.py",
    "memory/protocol/queue.py",
)
SOURCE = str(Path(holdfast.__file__).parent)

pytestmark = pytest.mark.skipif("coverage" in sys.modules, reason="there is one tracer at a time")


class Tracer:
    """Calls a function at the n-th bytecode of our modules."""

    def __init__(self, number: int, call: Callable[[], object]) -> None:
        self.remaining = number
        self._call = call

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE) or not frame.f_code.co_filename.endswith(MODULES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.remaining -= 1
            if self.remaining == 0:
                sys.settrace(None)
                self._call()
        return self


def interrupted(number: int, call: Callable[[], object], interruption: Callable[[], object]) -> bool:
    """Whether the call reaches this bytecode."""
    tracer = Tracer(number, interruption)
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(None)
    return tracer.remaining <= 0


@pytest.fixture
def client() -> Iterator[holdfast.Client]:
    with holdfast.Client(f"memory://{uuid.uuid4().hex}") as client:
        yield client


def test_a_signal_handler_that_uses_another_lock_does_not_affect_the_interrupted_call(client: holdfast.Client) -> None:
    lock, other = client.lock("a"), client.lock("b")
    refused = 0

    def handler() -> None:
        nonlocal refused
        try:
            lease = other.acquire(timeout=0)
        except holdfast.BackendUnavailable:  # in the middle of a step of the store
            refused += 1
        else:
            assert lease is not None
            lease.release()

    def call() -> None:
        with lock as lease:
            lease.check()

    number = 1
    while interrupted(number, call, handler):
        assert not lock.held
        assert not other.held
        assert client.locks() == [], f"after an interruption at bytecode {number}"
        number += 3
    assert number > 300, "hardly any bytecode was interrupted: this test would show nothing"
    assert 0 < refused < number / 6
    keeper = client._engine._keeper
    assert not keeper._schedule.pending
    assert not client._engine._acquiring


def test_a_signal_handler_never_holds_the_same_lock_together_with_the_interrupted_call(client: holdfast.Client) -> None:
    lock = client.lock("a")
    leases_of_handler: list[holdfast.Lease] = []

    def handler() -> None:
        try:
            lease = lock.acquire(timeout=0)
        except holdfast.BackendUnavailable:
            return
        if lease is not None:
            leases_of_handler.append(lease)

    number = 1
    while True:
        leases_of_handler.clear()
        leases_of_call: list[holdfast.Lease | None] = []
        more = interrupted(number, lambda: leases_of_call.append(lock.acquire(timeout=0)), handler)  # noqa: B023  (called at once)
        held = [lease for lease in [*leases_of_handler, *leases_of_call] if lease is not None and lease.held]
        assert len(held) == 1, f"after an interruption at bytecode {number}"
        assert len(client.inspect("a").holders) == 1
        held[0].release()
        if not more:
            break
        number += 3
    assert number > 150


def test_leases_that_finalisers_release_are_all_released(client: holdfast.Client) -> None:
    leases: dict[int, holdfast.Lease | None] = {}

    class Job:
        def __init__(self, number: int) -> None:
            self.number = number
            self.itself = self  # so that only the garbage collector frees it
            leases[number] = client.lock(f"job-{number}").acquire()

        def __del__(self) -> None:
            lease = leases.pop(self.number)
            assert lease is not None
            with contextlib.suppress(holdfast.BackendUnavailable):  # the keeper repeats it
                lease.release()

    before = gc.get_threshold()
    gc.set_threshold(20, 5, 5)
    try:
        for number in range(600):
            Job(number)
    finally:
        gc.set_threshold(*before)

    def all_are_freed() -> bool:
        gc.collect()  # does nothing while another thread collects
        return not leases

    eventually(all_are_freed)
    eventually(lambda: client.locks() == [])
