"""Records, by the verb of a backend: two clients replace the same record, it ends early or never, or it is a lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.core.ports import RECORD_MAX, Record, StoreMissing
from holdfast.core.tickets import Granted
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Store
from holdfast_lab.conformance.processes import eventually
from holdfast_lab.conformance.verbs import Verbs

OURS, THEIRS, LATER = (Record(digit * 32, f'{{"of": "{digit}"}}') for digit in "abc")
NAMES = [
    *("a", "A", "a ", " a", "á", "'", "%", "x/y", "a}b", "a{b}c", "a:b", "n-lock-0000000001", "\\", '"', ".."),
    *("x" * 512, "é" * 512, "😀" * 512),
]
PAYLOADS = ["", "{}", "é😀\u2028\x7f", "'\"\\%_?$1\r\n\t", "null\x01", "x" * RECORD_MAX, "😀" * (RECORD_MAX // 4)]


pytestmark = pytest.mark.needs(Primitive.ONCE)


def read(client: Verbs, name: str) -> Record | None:
    try:
        return client.read_record(name)
    except StoreMissing:
        return None


def test_a_record_is_written_once_and_a_repeat_of_the_call_has_succeeded_too(store: Store) -> None:
    client = store.open()

    assert client.swap_record("a", "", OURS) == OURS
    assert client.swap_record("a", "", OURS) == OURS, "the same call again, because its answer was lost"
    assert client.swap_record("a", "", THEIRS) == OURS
    assert client.swap_record("a", "", None) == OURS
    assert read(store.open(), "a") == OURS
    assert read(client, "b") is None


def test_a_record_is_replaced_only_by_a_call_that_expects_its_nonce(store: Store) -> None:
    client = store.open()
    client.swap_record("a", "", OURS)

    assert client.swap_record("a", LATER.nonce, THEIRS) == OURS
    assert client.swap_record("a", OURS.nonce, THEIRS) == THEIRS
    assert client.swap_record("a", OURS.nonce, THEIRS) == THEIRS, "a repeat"
    assert client.swap_record("a", OURS.nonce, LATER) == THEIRS
    assert client.swap_record("a", "", OURS) == THEIRS, "a repeat of the first call, too late"
    assert read(client, "a") == THEIRS


def test_a_record_is_removed_only_by_a_call_that_expects_its_nonce(store: Store) -> None:
    client = store.open()
    client.swap_record("a", "", OURS)

    assert client.swap_record("a", THEIRS.nonce, None) == OURS
    assert client.swap_record("a", OURS.nonce, None) is None
    assert client.swap_record("a", OURS.nonce, None) is None, "a repeat"
    assert client.swap_record("a", OURS.nonce, THEIRS) is None, "nothing is there to be replaced"
    assert read(client, "a") is None
    assert client.swap_record("a", "", THEIRS) == THEIRS
    assert client.swap_record("a", OURS.nonce, None) == THEIRS


def test_names_and_payloads_are_exact(store: Store) -> None:
    client = store.open()
    written = {name: Record(f"{number:032x}", name) for number, name in enumerate(NAMES)}
    written |= {f"payload {number}": Record(f"{number:032x}", text) for number, text in enumerate(PAYLOADS)}

    for name, record in written.items():
        assert client.swap_record(name, "", record) == record

    assert {name: read(client, name) for name in written} == written


def test_records_are_neither_locks_nor_registers(store: Store) -> None:
    client = store.open()
    held = client.ticket("a", ttl=20.0)
    assert isinstance(client.try_acquire(held, queue=False), Granted)
    assert client.advance_register("a", 7)

    assert read(client, "a") is None
    assert client.swap_record("a", "", OURS) == OURS
    assert client.swap_record("b", "", THEIRS) == THEIRS

    assert client.read_registers("a", "b") == [7, 0]
    assert [info.name for info in client.locks()] == ["a"]
    assert client.release(held) == [True]
    assert client.locks() == []
    assert client.swap_record("a", OURS.nonce, None) is None
    assert client.read_registers("a") == [7]


def test_a_record_outlives_its_client(store: Store) -> None:
    first = store.open()
    first.swap_record("a", "", OURS)
    first.close()

    assert read(store.open(), "a") == OURS


def test_an_expired_record_does_not_exist(store: Store) -> None:
    client = store.open()
    client.swap_record("a", "", OURS, keep=0.2)
    client.swap_record("b", "", OURS, keep=0.2)

    eventually(lambda: read(client, "a") is None and read(client, "b") is None)

    assert client.swap_record("a", OURS.nonce, THEIRS) is None
    assert client.swap_record("a", OURS.nonce, None) is None
    assert client.swap_record("a", "", THEIRS) == THEIRS
    assert client.swap_record("b", "", OURS) == OURS, "with the same nonce"
    assert read(client, "b") == OURS


def test_a_replaced_record_is_kept_as_long_as_its_last_call_says(store: Store) -> None:
    client = store.open()
    client.swap_record("long", "", OURS, keep=0.5)
    assert client.swap_record("long", OURS.nonce, THEIRS, keep=100.0) == THEIRS
    client.swap_record("short", "", OURS, keep=100.0)
    assert client.swap_record("short", OURS.nonce, THEIRS, keep=0.2) == THEIRS
    client.swap_record("probe", "", OURS, keep=0.5)

    eventually(lambda: read(client, "short") is None and read(client, "probe") is None)

    assert read(client, "long") == THEIRS


def test_a_removed_record_does_not_end_its_successor(store: Store) -> None:
    client = store.open()
    client.swap_record("a", "", OURS, keep=0.5)
    client.swap_record("a", OURS.nonce, None)
    assert client.swap_record("a", "", THEIRS, keep=100.0) == THEIRS
    client.swap_record("probe", "", OURS, keep=0.5)

    eventually(lambda: read(client, "probe") is None)

    assert read(client, "a") == THEIRS


def test_one_of_many_concurrent_clients_writes_each_record(store: Store) -> None:
    written: list[str] = []

    def write(client: Verbs, together: threading.Barrier) -> None:
        for name in map(str, range(20)):
            mine = Record(client.runtime.nonce(), "")
            together.wait(60)
            if client.swap_record(name, "", mine) == mine:
                written.append(name)

    in_parallel(store, write)

    assert Counter(written) == Counter(map(str, range(20)))


def test_no_replacement_of_concurrent_clients_is_lost(store: Store) -> None:
    rounds, clients = 10, 4

    def count(client: Verbs, together: threading.Barrier) -> None:
        together.wait(60)
        for _ in range(rounds):
            while True:
                current = read(client, "a")
                number = int(current.payload) if current else 0
                mine = Record(client.runtime.nonce(), str(number + 1))
                if client.swap_record("a", current.nonce if current else "", mine) == mine:
                    break

    in_parallel(store, count, clients)

    last = read(store.open(), "a")
    assert last is not None
    assert last.payload == str(rounds * clients)


def in_parallel(store: Store, work: Callable[[Verbs, threading.Barrier], None], clients: int = 4) -> None:
    """Run the work on several clients, each on a thread of its own."""
    together = threading.Barrier(clients)
    errors: list[BaseException] = []

    def run(client: Verbs) -> None:
        try:
            work(client, together)
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=run, args=(store.open(),)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    if errors:
        raise errors[0]
