"""The wait-for graph for the page `waits`: callers that block others are nodes, and other waiters are counted.

The 1,000 waiters of a lock that block no other caller are one node with a number, so that the picture shows chains
and cycles.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.tickets import TicketInfo
from holdfast.core.wait_graph import WaitEdge, WaitGraph

ARROWS_MAX = 400

Caller = tuple[str, ...]


def waits(graph: WaitGraph) -> dict[str, Any]:
    """The JSON object: nodes, arrows from waiter to blocker by the index of the node, and the edges of each cycle."""
    blockers = {_caller(edge.blocker) for edge in graph.edges}
    cyclic = {edge for cycle in graph.cycles for edge in map(_ends, cycle)}
    tickets: dict[Caller, TicketInfo] = {}
    waiters: dict[Caller, set[Caller]] = {}  # counted by a node
    arrows: dict[tuple[Caller, Caller, str], bool] = {}  # whether the arrow is part of a cycle
    for edge in graph.edges:
        waiter, blocker, lock = _ends(edge)
        node = waiter if waiter in blockers else ("waiters", lock)
        if node is not waiter:
            waiters.setdefault(node, set()).add(waiter)
        tickets.setdefault(node, edge.waiter)
        tickets.setdefault(blocker, edge.blocker)
        arrows[node, blocker, lock] = (waiter, blocker, lock) in cyclic
    # Cycles first, then chains, then long queues: the rest is omitted if there are too many.
    ranked = sorted(arrows, key=lambda arrow: (not arrows[arrow], arrow[0] in waiters, -len(waiters.get(arrow[0], ()))))
    shown = ranked[:ARROWS_MAX]
    index = {node: number for number, node in enumerate(dict.fromkeys(end for arrow in shown for end in arrow[:2]))}
    return {
        "nodes": [{**ticket_fields(tickets[node]), "count": len(waiters.get(node, ())) or None} for node in index],
        "arrows": [
            {"from": index[node], "to": index[blocker], "lock": lock, "cycle": arrows[node, blocker, lock]}
            for node, blocker, lock in shown
        ],
        "omitted": len(ranked) - len(shown),
        "cycles": [
            [
                {"lock": edge.lock, "waiter": ticket_fields(edge.waiter), "blocker": ticket_fields(edge.blocker)}
                for edge in cycle
            ]
            for cycle in graph.cycles
        ],
    }


def ticket_fields(ticket: TicketInfo) -> dict[str, Any]:
    """The identity of a ticket. The fence is text, because a number of JavaScript has 53 bits."""
    return {
        "fence": None if ticket.fence is None else str(ticket.fence),
        "host": ticket.host,
        "pid": ticket.pid,
        "program": ticket.program,
        "agent": ticket.agent,
    }


def _ends(edge: WaitEdge) -> tuple[Caller, Caller, str]:
    return _caller(edge.waiter), _caller(edge.blocker), edge.lock


def _caller(ticket: TicketInfo) -> Caller:
    """The thread or task; as far as the store knows it."""
    return (ticket.caller,) if ticket.caller else (ticket.host, str(ticket.pid), ticket.agent)
