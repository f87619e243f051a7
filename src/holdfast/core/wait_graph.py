"""The wait-for graph: which thread or task waits for which, made from the holders and waiters of locks.

A waiter waits for every ticket that must end before its own can be granted. The rule of the queue (tickets.py) gives
two kinds of edges:

- to every holder that excludes it: one of the two is exclusive, and they do not have the same named owner;
- a waiting reader also to the first exclusive waiter before it, because no ticket overtakes another.

Edges from an exclusive waiter to the waiters before it would add no cycle, because the same holders block all of them.
The permits of a semaphore have no edges, because any of several holders can make room for a waiter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.core.tickets import LockInfo, TicketInfo


class WaitEdge(NamedTuple):
    """A waiter of a lock, and a ticket that blocks it: a holder, or an earlier waiter, which has no fence."""

    lock: str
    waiter: TicketInfo
    blocker: TicketInfo

    @property
    def is_certain(self) -> bool:
        """Both callers are known, and the caller of the waiter does nothing else while it waits."""
        return bool(self.waiter.caller and self.blocker.caller) and not self.waiter.detached

    @property
    def identity(self) -> tuple[object, ...]:
        """Distinguishes its two tickets from others: callers, attempts with `detect_deadlocks`, and the fence."""
        waiter, blocker = self.waiter, self.blocker
        return (self.lock, waiter.caller, waiter.attempt, blocker.caller, blocker.attempt, blocker.fence)

    def __str__(self) -> str:
        """One sentence, for messages."""
        blocker = self.blocker
        verb = "is queued before it" if blocker.fence is None else f"holds it with fence {blocker.fence}"
        return f"{_text(self.waiter)} waits for {self.lock!r}, {_text(blocker)} {verb}"


class WaitGraph(NamedTuple):
    """The threads and tasks that wait for each other.

    A cycle is a deadlock. The blocker of each of its edges is the waiter of the next edge; the blocker of the last edge
    is the waiter of the first. For callers that wait for each other in several cycles, `cycles` has a short one.
    """

    edges: tuple[WaitEdge, ...]
    cycles: tuple[tuple[WaitEdge, ...], ...]


def wait_graph(locks: Iterable[LockInfo]) -> WaitGraph:
    """The graph of these locks. Locks that were not read at the same time can give a cycle that never existed."""
    edges = tuple(edge for info in locks for edge in edges_of(info))
    return WaitGraph(edges, tuple(_cycles(edge for edge in edges if edge.is_certain)))


def edges_of(info: LockInfo) -> Iterator[WaitEdge]:
    """The edges of one lock."""
    first_exclusive: TicketInfo | None = None
    owners = {holder.owner for holder in info.holders} - {""}
    for waiter in info.waiters:
        if is_permit(waiter) or waiter.owner in owners:  # a ticket of an owner that holds is granted before the queue
            continue
        for holder in info.holders:
            if (waiter.exclusive or holder.exclusive) and not is_permit(holder):
                yield WaitEdge(info.name, waiter, holder)
        if waiter.exclusive:
            first_exclusive = first_exclusive or waiter
        elif first_exclusive is not None:
            yield WaitEdge(info.name, waiter, first_exclusive)


def is_permit(ticket: TicketInfo) -> bool:
    """It is a permit of a semaphore."""
    return ticket.limit is not None and not ticket.exclusive


def _text(ticket: TicketInfo) -> str:
    return f"{ticket} ({ticket.agent})" if ticket.agent else str(ticket)


def _cycles(edges: Iterable[WaitEdge]) -> Iterator[tuple[WaitEdge, ...]]:
    """A short cycle of each set of callers that wait for each other."""
    edges_from: dict[str, list[WaitEdge]] = {}
    for edge in edges:
        edges_from.setdefault(edge.waiter.caller, []).append(edge)
    for component in _components({caller: [edge.blocker.caller for edge in out] for caller, out in edges_from.items()}):
        members = set(component)
        inside = {
            caller: [edge for edge in edges_from.get(caller, ()) if edge.blocker.caller in members]
            for caller in component
        }
        cycle = min((_shortest_cycle(caller, inside) for caller in component[:_STARTS_MAX]), key=len)
        if cycle:
            yield cycle


_STARTS_MAX = 20  # searches from all callers of a large component would take too long


def _shortest_cycle(start: str, edges_from: Mapping[str, list[WaitEdge]]) -> tuple[WaitEdge, ...]:
    """The shortest path from this caller back to it; empty if none exists."""
    edge_to: dict[str, WaitEdge] = {}
    queue = deque([start])
    while queue:
        for edge in edges_from[queue.popleft()]:
            if edge.blocker.caller == start:
                cycle = [edge]
                while cycle[-1].waiter.caller != start:
                    cycle.append(edge_to[cycle[-1].waiter.caller])
                return tuple(reversed(cycle))
            if edge.blocker.caller not in edge_to:
                edge_to[edge.blocker.caller] = edge
                queue.append(edge.blocker.caller)
    return ()


def _components(successors: Mapping[str, list[str]]) -> list[list[str]]:
    """The strongly connected components, by Kosaraju's algorithm; without recursion, because chains can be long."""
    predecessors: dict[str, list[str]] = {}
    for caller, blockers in successors.items():
        for blocker in blockers:
            predecessors.setdefault(blocker, []).append(caller)
    finished: list[str] = []
    visited: set[str] = set()
    for caller in successors:
        finished += _depth_first(caller, successors, visited)
    visited = set()
    components = [_depth_first(caller, predecessors, visited) for caller in reversed(finished)]
    return [component for component in components if component]


def _depth_first(start: str, successors: Mapping[str, list[str]], visited: set[str]) -> list[str]:
    """The callers that are reached from `start` and were not visited, in the order in which their visits end."""
    if start in visited:
        return []
    visited.add(start)
    finished: list[str] = []
    stack = [(start, iter(successors.get(start, ())))]
    while stack:
        caller, following = stack[-1]
        following_caller = next((other for other in following if other not in visited), None)
        if following_caller is None:
            finished.append(caller)
            stack.pop()
        else:
            visited.add(following_caller)
            stack.append((following_caller, iter(successors.get(following_caller, ()))))
    return finished
