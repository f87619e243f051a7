"""Hazard: a clock, a restart or a power cut loses a register, or two clients advance it to the same number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.backends.sqlite.config import config_of
from holdfast.backends.sqlite.io.blocking import BlockingPort
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.sqlite.conftest import Store

_MAKE_OLDER = "UPDATE marks SET until = until - 3700"


@pytest.fixture
def verbs(store: Store) -> Iterator[Verbs]:
    verbs = Verbs(store.url)
    yield verbs
    verbs.close()


def _reboot(store: Store) -> None:
    store.query("UPDATE tickets SET session = 'another boot' WHERE name = ''")


def test_a_register_outlives_its_client_and_a_reboot(store: Store) -> None:
    first = Verbs(store.url)
    first.advance_register("one", 7)
    first.try_acquire(first.ticket("one"))
    first.close()
    _reboot(store)

    second = Verbs(store.url)

    assert second.read_registers("one") == [7]
    assert not second.advance_register("one", 7)
    assert second.locks() == []  # the reboot has ended all leases
    second.close()


def test_a_register_ends_when_both_clocks_have_passed_its_times(store: Store, verbs: Verbs) -> None:
    verbs.advance_register("expired", 7, keep=0.0)
    verbs.advance_register("kept", 7, keep=100.0)
    store.query(_MAKE_OLDER)

    verbs.advance_register("other", 1)

    assert verbs.read_registers("expired", "kept") == [0, 7]


def test_a_wall_clock_that_is_set_forward_ends_no_register(store: Store, verbs: Verbs) -> None:
    verbs.advance_register("one", 7, keep=100.0)
    store.query("UPDATE marks SET until = 0.0")

    assert not verbs.advance_register("one", 7)


def test_a_register_ends_by_the_wall_clock_after_a_reboot(store: Store) -> None:
    first = Verbs(store.url)
    first.advance_register("expired", 7, keep=0.0)
    first.advance_register("kept", 7, keep=100.0)
    first.close()
    store.query("UPDATE marks SET until = until - 1e6, expires = 1e9 WHERE name = 'expired'")
    _reboot(store)

    second = Verbs(store.url)
    second.advance_register("other", 1)

    assert second.read_registers("expired", "kept") == [0, 7]
    second.close()


def test_a_register_is_kept_for_the_longest_time_requested(store: Store, verbs: Verbs) -> None:
    verbs.advance_register("one", 7, keep=1e6)
    verbs.advance_register("one", 8, keep=0.0)
    store.query(_MAKE_OLDER)

    verbs.advance_register("other", 1)

    assert verbs.read_registers("one") == [8]


def test_only_durable_transactions_wait_for_the_disk(store: Store) -> None:
    runtime = ThreadRuntime()
    port = BlockingPort(config_of(parse(store.url)), runtime)

    def level(*, durable: bool) -> object:
        deadline = runtime.now() + 5.0
        return run_sync(port.transact(lambda txn: txn.row("PRAGMA synchronous"), deadline=deadline, durable=durable))

    levels = [level(durable=durable) for durable in (False, True, True, False)]

    assert levels == [(1,), (2,), (2,), (1,)]  # NORMAL, FULL
    run_sync(port.close())
