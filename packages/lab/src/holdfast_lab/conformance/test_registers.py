"""Registers, by the verbs of a backend: two clients advance one to the same number, it decreases, or it is a lock."""

from __future__ import annotations

import threading

import pytest

from holdfast.core.tickets import Granted
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Store

OURS, THEIRS = "a" * 32, "b" * 32
LARGEST = 2**63 - 1
NAMES = [
    *("a", "A", "a ", "á", "'", "%", "x/y", "a}b", "a{b}c", "n-lock-0000000001"),
    *("x" * 528, "é" * 528, "😀" * 512, "😀" * 528),  # longer than the names of locks
]


pytestmark = pytest.mark.needs(Primitive.ONCE_PER)


def test_a_register_never_decreases_and_has_the_nonce_of_its_setter(store: Store) -> None:
    client = store.open()

    assert client.read_registers("a", "b") == [0, 0]
    assert client.advance_register("a", 7, nonce=OURS)
    assert client.advance_register("a", 7, nonce=OURS), "the same call again, because its answer was lost"
    assert not client.advance_register("a", 7, nonce=THEIRS)
    assert not client.advance_register("a", 6, nonce=OURS)
    assert client.advance_register("a", 10)  # more digits
    assert not client.advance_register("a", 9)
    assert not client.advance_register("a", 7, nonce=OURS), "another call has advanced it since"
    for number in (1_700_000_000_000_001, LARGEST - 1, LARGEST):
        assert client.advance_register("a", number)
        assert not client.advance_register("a", number)
    assert client.read_registers("b", "a", "b") == [0, LARGEST, 0]
    assert client.read_registers() == []


def test_one_of_many_concurrent_clients_advances_a_register_to_each_number(store: Store) -> None:
    assert race(store, numbers=30) == list(range(1, 31))


def race(store: Store, *, numbers: int, clients: int = 4) -> list[int]:
    """Several clients advance one register to each number at the same time: the numbers, once for each success."""
    advanced: list[int] = []
    together = threading.Barrier(clients)

    def work() -> None:
        client = store.open()
        for number in range(1, numbers + 1):
            together.wait(60)
            advanced.extend([number] * client.advance_register("a", number))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return sorted(advanced)


def test_registers_are_not_listed_as_locks_and_names_are_exact(store: Store) -> None:
    client = store.open()
    held = client.ticket("a", ttl=20.0)
    assert isinstance(client.try_acquire(held, queue=False), Granted)

    assert client.read_registers("a") == [0]
    assert [client.advance_register(name, number) for number, name in enumerate(NAMES, 1)] == [True] * len(NAMES)

    assert client.read_registers(*NAMES) == list(range(1, len(NAMES) + 1))
    assert [info.name for info in client.locks()] == ["a"]
    assert client.release(held) == [True]
    assert client.locks() == []
    assert client.read_registers("a") == [1]


def test_a_register_outlives_its_client(store: Store) -> None:
    first = store.open()
    first.advance_register("a", 7)
    first.close()

    second = store.open()

    assert second.read_registers("a") == [7]
    assert not second.advance_register("a", 7)


def test_hundreds_of_registers_are_read_together(store: Store) -> None:
    client = store.open()
    client.advance_register("n249", 3)

    assert client.read_registers(*(f"n{number}" for number in range(250))) == [0] * 249 + [3]
