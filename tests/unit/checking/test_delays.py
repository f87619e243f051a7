"""Somebody is let in while a holder that was lost may still be at work, and nobody sees it."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import NobodyInDelay
from tests.unit.checking.stories import LOCK, admitted, check, found, granted, lost, released, what

LEASE = granted(0, "a", 1, deadline=6)._replace(delay=3.0)


def test_nobody_is_let_in_before_the_delay_is_over() -> None:
    assert what(NobodyInDelay, [LEASE, lost(6, "a", 1), admitted(8, "b", 2)]) == (
        "b was let into 'report' 2 s after a's lease of it had ended, in its delay of 3 s"
    )
    assert not found(NobodyInDelay, [LEASE, lost(6, "a", 1), admitted(9, "b", 2)])
    assert check(NobodyInDelay, [LEASE]).was_tested


def test_a_clock_may_be_a_little_fast() -> None:
    history: h.History = [LEASE, lost(6, "a", 1), admitted(8.98, "b", 2)]

    assert found(NobodyInDelay, history)
    assert not found(NobodyInDelay, history, Promises(drift=0.01))


def test_the_delay_counts_from_the_end_of_the_belief() -> None:
    renewed: h.History = [LEASE, h.Renewed(3, "a", 1, LOCK, 9)]

    assert found(NobodyInDelay, [LEASE, lost(2, "a", 1), admitted(4, "b", 2)])
    assert not found(NobodyInDelay, [LEASE, lost(2, "a", 1), admitted(5.5, "b", 2)])
    assert found(NobodyInDelay, [*renewed, lost(9, "a", 1), admitted(11, "b", 2)])
    assert found(NobodyInDelay, [LEASE, h.Crashed(1, "a"), admitted(8, "b", 2)])
    assert found(NobodyInDelay, [LEASE, admitted(8, "b", 2)])


@pytest.mark.parametrize("end", [released(2, "a", 1), h.StateLost(2, "lease", LOCK), h.StateLost(2, "data")])
def test_what_was_given_back_or_forgotten_has_no_delay(end: h.Event) -> None:
    assert not found(NobodyInDelay, [LEASE, end, admitted(2.5, "b", 2), lost(2.6, "a", 1), admitted(4, "c", 3)])


def test_a_clock_that_went_back_ends_no_delay() -> None:
    assert found(NobodyInDelay, [LEASE, h.StateLost(2, "clock"), lost(6, "a", 1), admitted(8, "b", 2)])


def test_those_who_could_have_been_beside_it_may_come() -> None:
    shared = LEASE._replace(exclusive=False, limit=None)
    reader = admitted(8, "b", 2)._replace(exclusive=False, limit=None)
    mine, kin = LEASE._replace(owner="x"), admitted(8, "b", 2)._replace(owner="x")

    assert not found(NobodyInDelay, [shared, lost(6, "a", 1), reader])
    assert not found(NobodyInDelay, [mine, lost(6, "a", 1), kin])
    assert found(NobodyInDelay, [shared, lost(6, "a", 1), admitted(8, "b", 2)])
    assert found(NobodyInDelay, [mine, lost(6, "a", 1), kin._replace(owner="y")])


def test_without_the_servers_events_grants_count() -> None:
    seen = Promises(sees_server=False)

    assert found(NobodyInDelay, [LEASE, lost(6, "a", 1), granted(8, "b", 2)], seen)
    assert not found(NobodyInDelay, [LEASE, lost(6, "a", 1), granted(9.1, "b", 2)], seen)


def test_a_grant_on_the_server_does_not_count_when_the_client_decides() -> None:
    promises = Promises(server_decides=False)

    assert not found(NobodyInDelay, [LEASE, lost(6, "a", 1), admitted(8, "b", 2)], promises)
    assert found(NobodyInDelay, [LEASE, lost(6, "a", 1), admitted(8, "b", 2), granted(8, "b", 2)], promises)
