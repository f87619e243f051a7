"""Hazard: the picture of the wait-for graph hides a deadlock among thousands of waiters, or shows a false one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.core.wait_graph import wait_graph
from holdfast.dashboard.waits import ARROWS_MAX, waits


def ticket(agent: str, fence: int | None = None, *, caller: bool = True) -> TicketInfo:
    return TicketInfo(fence, "web-3", 1, agent, "shop", 0.0, 9.0, True, 1, {}, caller=agent if caller else "")  # noqa: FBT003


def lock(name: str, holder: str, *waiters: str, caller: bool = True) -> LockInfo:
    return LockInfo(
        name, (ticket(holder, 1, caller=caller),), tuple(ticket(waiter, caller=caller) for waiter in waiters)
    )


def picture_of(*locks: LockInfo) -> dict[str, Any]:
    return waits(wait_graph(locks))


def arrows(picture: dict[str, Any]) -> set[tuple[str, str, str]]:
    nodes = [f"{node['count']} waiters" if node["count"] else node["agent"] for node in picture["nodes"]]
    return {(nodes[arrow["from"]], nodes[arrow["to"]], arrow["lock"]) for arrow in picture["arrows"]}


def test_no_waits_give_an_empty_picture() -> None:
    assert picture_of(lock("a", "x")) == {"nodes": [], "arrows": [], "omitted": 0, "cycles": []}


def test_waiters_that_block_no_caller_are_one_node_with_their_number() -> None:
    picture = picture_of(lock("a", "x", *(f"w{number}" for number in range(1000))))

    assert arrows(picture) == {("1000 waiters", "x", "a")}


def test_the_waiters_of_two_locks_are_two_nodes() -> None:
    picture = picture_of(lock("a", "x", "w1", "w2"), lock("b", "x", "w3"))

    assert arrows(picture) == {("2 waiters", "x", "a"), ("1 waiters", "x", "b")}


def test_a_waiter_that_blocks_another_caller_is_a_node_of_its_own() -> None:
    picture = picture_of(lock("a", "x", "y", "w1"), lock("b", "y", "w2"))

    assert arrows(picture) == {("y", "x", "a"), ("1 waiters", "x", "a"), ("1 waiters", "y", "b")}


def test_callers_of_an_older_version_are_distinguished_by_host_process_and_agent() -> None:
    picture = picture_of(lock("a", "x", "y", caller=False), lock("b", "y", "w", caller=False))

    assert arrows(picture) == {("y", "x", "a"), ("1 waiters", "y", "b")}


def test_only_the_arrows_of_a_deadlock_are_marked() -> None:
    picture = picture_of(lock("a", "x", "y", "w"), lock("b", "y", "x"))

    nodes = [node["agent"] for node in picture["nodes"]]
    marked = {(nodes[arrow["from"]], arrow["lock"]) for arrow in picture["arrows"] if arrow["cycle"]}
    assert marked == {("y", "a"), ("x", "b")}
    [cycle] = picture["cycles"]
    assert {(edge["waiter"]["agent"], edge["lock"], edge["blocker"]["agent"]) for edge in cycle} == {
        ("y", "a", "x"),
        ("x", "b", "y"),
    }


@pytest.mark.parametrize("position", ["first", "last"])
def test_a_deadlock_is_shown_before_chains_and_queues_if_there_are_too_many_arrows(position: str) -> None:
    queues = [lock(f"q{number}", f"h{number}", f"w{number}") for number in range(ARROWS_MAX + 50)]
    chain = [lock("c1", "c", "d"), lock("c2", "d", "e")]
    deadlock = [lock("a", "x", "y"), lock("b", "y", "x")]
    locks = [*deadlock, *chain, *queues] if position == "first" else [*queues, *chain, *deadlock]

    picture = picture_of(*locks)

    assert len(picture["arrows"]) == ARROWS_MAX
    assert picture["omitted"] == ARROWS_MAX + 50 + 4 - ARROWS_MAX
    assert [arrow["lock"] for arrow in picture["arrows"][:3]] in (["a", "b", "c1"], ["b", "a", "c1"])
    assert {end for arrow in picture["arrows"] for end in (arrow["from"], arrow["to"])} == {
        *range(len(picture["nodes"]))
    }


def test_the_longest_queues_are_shown_if_there_are_too_many() -> None:
    short = [lock(f"q{number}", f"h{number}", f"w{number}") for number in range(ARROWS_MAX)]
    long = lock("long", "h", "w", "v")

    picture = picture_of(*short, long)

    assert picture["arrows"][0]["lock"] == "long"
    assert picture["omitted"] == 1
