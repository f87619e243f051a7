"""Hazard: a deadlock is not shown, or callers that do not wait for each other are shown as a deadlock."""

from __future__ import annotations

import multiprocessing
import os
from itertools import pairwise

import pytest

from holdfast import Client
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.core.wait_graph import WaitGraph, wait_graph
from holdfast.runtimes import system


def ticket(
    caller: str, fence: int | None = None, *, limit: int | None = 1, owner: str = "", detached: bool = False
) -> TicketInfo:
    return TicketInfo(
        fence, "host", 1, caller, "program", 0.0, 9.0, limit == 1, limit, {}, owner, caller=caller, detached=detached
    )


def reader(caller: str, fence: int | None = None) -> TicketInfo:
    return ticket(caller, fence, limit=None)


def graph(**locks: tuple[list[TicketInfo], list[TicketInfo]]) -> WaitGraph:
    return wait_graph(LockInfo(name, tuple(holders), tuple(waiters)) for name, (holders, waiters) in locks.items())


def edges(result: WaitGraph) -> list[tuple[str, str, str]]:
    return [(edge.waiter.caller, edge.lock, edge.blocker.caller) for edge in result.edges]


def cycles(result: WaitGraph) -> list[list[str]]:
    """The callers of each cycle, beginning with the first in the alphabet."""
    names = [[edge.waiter.caller for edge in cycle] for cycle in result.cycles]
    return [cycle[cycle.index(min(cycle)) :] + cycle[: cycle.index(min(cycle))] for cycle in names]


def test_every_waiter_of_a_lock_waits_for_its_holder() -> None:
    result = graph(x=([ticket("a", 1)], [ticket("b"), ticket("c")]))

    assert edges(result) == [("b", "x", "a"), ("c", "x", "a")]
    assert result.cycles == ()


def test_two_callers_that_take_two_locks_in_opposite_orders_are_a_cycle() -> None:
    result = graph(x=([ticket("a", 1)], [ticket("b")]), y=([ticket("b", 2)], [ticket("a")]))

    assert cycles(result) == [["a", "b"]]
    (cycle,) = result.cycles
    assert all(edge.blocker.caller == after.waiter.caller for edge, after in pairwise([*cycle, cycle[0]]))
    assert "waits for 'x', host/1 (a) holds it with fence 1" in " ".join(map(str, cycle))


def test_a_ring_of_many_callers_is_one_cycle() -> None:
    size = 3000  # deeper than Python's recursion limit
    locks = [
        LockInfo(f"lock{number}", (ticket(f"{number:04}", number),), (ticket(f"{(number + 1) % size:04}"),))
        for number in range(size)
    ]

    (cycle,) = wait_graph(locks).cycles

    assert len(cycle) == size
    assert wait_graph(locks[:-1]).cycles == ()


def test_separate_deadlocks_are_separate_cycles_and_their_waiters_belong_to_none() -> None:
    result = graph(
        x=([ticket("a", 1)], [ticket("b"), ticket("bystander")]),
        y=([ticket("b", 2)], [ticket("a")]),
        u=([ticket("c", 1)], [ticket("d")]),
        v=([ticket("d", 2)], [ticket("c")]),
    )

    assert sorted(cycles(result)) == [["a", "b"], ["c", "d"]]


def test_the_shortest_of_connected_cycles_is_shown() -> None:
    result = graph(
        x=([reader("a", 1), reader("b", 2)], [ticket("c")]),
        y=([ticket("c", 3)], [ticket("a")]),
        z=([ticket("c", 4)], [ticket("d")]),
        w=([ticket("d", 5)], [ticket("b")]),
    )

    assert cycles(result) == [["a", "c"]]


def test_readers_wait_for_writers_and_not_for_readers() -> None:
    result = graph(x=([reader("a", 1), reader("b", 2)], [ticket("c"), reader("d"), ticket("e"), reader("f")]))

    assert edges(result) == [
        ("c", "x", "a"),
        ("c", "x", "b"),
        ("d", "x", "c"),
        ("e", "x", "a"),
        ("e", "x", "b"),
        ("f", "x", "c"),
    ]


def test_a_reader_behind_a_waiting_writer_is_part_of_a_cycle_through_it() -> None:
    result = graph(x=([reader("a", 1)], [ticket("writer"), reader("b")]), y=([ticket("b", 2)], [ticket("a")]))

    assert cycles(result) == [["a", "b", "writer"]]


def test_two_readers_that_become_writers_wait_for_each_other_and_for_themselves() -> None:
    result = graph(x=([reader("a", 1), reader("b", 2)], [ticket("a"), ticket("b")]))

    assert ("a", "x", "b") in edges(result)
    assert [len(cycle) for cycle in result.cycles] == [1]


def test_permits_of_a_semaphore_have_no_edges() -> None:
    result = graph(x=([ticket("a", 1, limit=2), ticket("b", 2, limit=2)], [ticket("c", limit=2)]))

    assert result.edges == ()


def test_a_ticket_of_the_owner_that_holds_waits_for_no_caller() -> None:
    result = graph(x=([ticket("a", 1, owner="me")], [ticket("b"), ticket("c", owner="me")]))

    assert edges(result) == [("b", "x", "a")]


@pytest.mark.parametrize("waiter", [ticket(""), ticket("a", detached=True)])
def test_a_waiter_whose_caller_is_not_certain_has_an_edge_and_no_cycle(waiter: TicketInfo) -> None:
    result = graph(x=([ticket("a", 1)], [ticket("b")]), y=([ticket("b", 2)], [waiter]))

    assert len(result.edges) == 2
    assert result.cycles == ()


def test_holders_of_other_programs_are_not_one_caller() -> None:
    result = graph(x=([ticket("", 0)], [ticket("")]), y=([ticket("", 0)], [ticket("")]))

    assert len(result.edges) == 2
    assert result.cycles == ()


def test_a_forked_child_is_another_caller_than_its_parent() -> None:
    caller_of_parent = _caller_here()
    reading, writing = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: os.write(writing, _caller_here().encode()))
    child.start()
    child.join()
    caller_of_child = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)

    process, _, number = caller_of_parent.partition("-")
    assert caller_of_parent == _caller_here() == f"{system.process_id()}-{number}"
    assert caller_of_child.partition("-")[::2] != (process, number)
    assert caller_of_child.partition("-")[0] != process


def _caller_here() -> str:
    with Client("memory://callers") as client, client.lock("a"):
        return client.inspect("a").holders[0].caller
