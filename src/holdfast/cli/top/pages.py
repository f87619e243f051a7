"""The lines of the pages: the table, one lock, the wait-for graph, help. Pure: no Textual, no store.

Everything that a client of the store chooses is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.lock_info import host_pid
from holdfast.cli.show import describe
from holdfast.cli.tables import GAP, fit_columns
from holdfast.cli.text import display_name, escape, shorten, wrap
from holdfast.cli.times import local_time, long, short
from holdfast.cli.top import rows
from holdfast.monitor.status import age

if TYPE_CHECKING:
    from holdfast.cli.terminal import Terminal
    from holdfast.cli.top.widgets import Line
    from holdfast.core.tickets import TicketInfo
    from holdfast.core.wait_graph import WaitEdge
    from holdfast.monitor import Holding, LockStatus, Snapshot

HELP = """\
/          filter by a part of the name, host, pid or program; Esc removes it
s, S       sort by the next column; reverse the order
Space      pause: nothing is read until Space is pressed again
Enter      the page of the selected lock: holders, queue, meta, past holders
g          the wait-for graph; deadlocks are red
r          request that the holders release the lock, after a confirmation
b          break a lease: type its fence to confirm
?          this page
Esc        back
q, Ctrl-C  quit

wait       the longest time that a present waiter has waited
ttl left   the time until the lease expires without a renewal. A lease is
           renewed every third of its ttl: yellow is late, red is critical.
           The ttl is the largest value that was seen.
"""


def table(
    locks: Sequence[LockStatus], at: float, order: rows.Order, deadlocked: set[str], terminal: Terminal
) -> tuple[Line, list[Line]]:
    """Return the heading, and one line for each lock."""
    columns = fit_columns(rows.headings(order), [rows.cells(lock, at) for lock in locks], terminal)
    gap = (" " * GAP, "")
    heading: list[tuple[str, str]] = []
    lines: list[list[tuple[str, str]]] = [[] for _ in locks]
    for column, (first, *cells) in columns:
        is_sorted_by = column.heading.endswith(("▲", "▼"))
        heading += [(first, "bold underline" if is_sorted_by else "bold"), gap]
        for line, lock, cell in zip(lines, locks, cells, strict=True):
            line += [(cell, _cell_style(column.heading.rstrip("▲▼"), lock, deadlocked)), gap]
    return heading, list(lines)


def _cell_style(heading: str, lock: LockStatus, deadlocked: set[str]) -> str:
    if heading == "ttl left":
        return rows.ttl_color(lock)
    if heading == "lock" and lock.name in deadlocked:
        return "bold red"
    return "yellow" if heading in ("waiters", "wait") and lock.waiters else ""


def selection(lock: LockStatus, at: float, columns: int) -> list[Line]:
    """Return two lines about the selected lock: the columns that a narrow terminal omits."""
    name = f"{display_name(lock.name)} ({lock.kind_text})"
    if not lock.holders:
        return [[(shorten(name, columns), "bold")], [("no holder", "")]]
    holder = lock.holders[0]
    more = f" and {len(lock.holders) - 1} more" if len(lock.holders) > 1 else ""
    text = (
        f"fence {holder.fence}  {host_pid(holder)}{more}  {escape(holder.program)}  {escape(holder.agent)}"
        f"  for {long(age(holder.since, at))}"
    )
    return [[(shorten(name, columns), "bold")], [(shorten(text, columns), "")]]


def lock_page(
    lock: LockStatus | None, name: str, history: Sequence[Holding], snapshot: Snapshot, terminal: Terminal
) -> list[Line]:
    """Return everything that is known about a lock: what `holdfast show` prints, and its past holders."""
    at = snapshot.read_at
    lines: list[Line] = []
    if lock is None:
        lines += [[(line, "bold")] for line in wrap(f"{display_name(name)} is free", terminal.columns)]
    else:
        title, *rest = describe(lock.info, terminal, at)
        lines += [[(line, "bold")] for line in wrap(title, terminal.columns)]
        deadlocks = [edge for cycle in snapshot.graph.cycles for edge in cycle if edge.lock == name]
        lines += [
            [(line, "bold red")] for edge in deadlocks for line in wrap(f"DEADLOCK: {_edge(edge)}", terminal.columns)
        ]
        bars = [rows.bar(holding.ticket.remaining, holding.ttl) for holding in lock.holdings]
        for line in rest:
            shown = f"{line:<28}{bars.pop(0)}".rstrip() if line.startswith("ttl left") and bars else line
            lines += [[(part, "")] for part in wrap(shown, terminal.columns)] or [[]]
    past = [holding for holding in history if holding.is_over]
    if past:
        lines += [[], [("past holders, the latest first", "bold")]]
        lines += [[(shorten(_past(holding), terminal.columns), "")] for holding in reversed(past)]
    return lines


def _past(holding: Holding) -> str:
    ticket = holding.ticket
    since = ticket.since or holding.seen_from
    return (
        f"{local_time(since)}  {short(max(0.0, holding.seen_until - since)):>4}  {host_pid(ticket)}  "
        f"{escape(ticket.program)}  fence {ticket.fence}"
    )


def graph_page(snapshot: Snapshot, terminal: Terminal) -> list[Line]:
    """Return the deadlocks, then a tree: under each holder its waiters, under each waiter those that wait for it."""
    lines: list[Line] = []
    for number, cycle in enumerate(snapshot.graph.cycles, start=1):
        lines.append([(f"deadlock {number}: {len(cycle)} callers wait for each other", "bold red")])
        lines += [[(part, "red")] for edge in cycle for part in wrap(f"  {_edge(edge)}", terminal.columns)]
        lines.append([])
    tree = _Tree(snapshot)
    lines += [[(shorten(text, terminal.columns), style)] for text, style in tree.lines()]
    return lines or [[("no caller waits for another", "")]]


class _Tree:
    """The graph as an indented tree. A caller that has been shown already is shown again without its waiters."""

    def __init__(self, snapshot: Snapshot) -> None:
        edges = snapshot.graph.edges
        self._at = snapshot.read_at
        self._cyclic = {_key(edge.waiter) for cycle in snapshot.graph.cycles for edge in cycle}
        self._waiters: dict[tuple[object, ...], list[WaitEdge]] = {}
        for edge in edges:
            self._waiters.setdefault(_key(edge.blocker), []).append(edge)
        waiting = {_key(edge.waiter) for edge in edges}
        blockers = {_key(edge.blocker): edge.blocker for edge in edges}
        # A caller that waits for no other is a root. A cycle has no such caller, so its callers are roots too.
        roots = [key for key in blockers if key not in waiting]
        self._roots = {key: blockers[key] for key in (*roots, *(key for key in blockers if key in self._cyclic))}
        self._shown: set[tuple[object, ...]] = set()

    def lines(self) -> Iterable[tuple[str, str]]:
        for key, blocker in self._roots.items():
            if key not in self._shown:
                yield (
                    f"{host_pid(blocker)} {escape(blocker.agent)} {escape(blocker.program)}".rstrip(),
                    self._style(key),
                )
                yield from self._below(key)

    def _below(self, root: tuple[object, ...]) -> Iterable[tuple[str, str]]:
        """Yield the waiters of a caller, without recursion, because a chain can be long."""
        self._shown.add(root)
        stack = [(edge, "", edge is self._waiters[root][-1]) for edge in reversed(self._waiters.get(root, ()))]
        while stack:
            edge, indent, is_last = stack.pop()
            key = _key(edge.waiter)
            again = key in self._shown and key in self._waiters
            name = f"{display_name(edge.lock)} ← {host_pid(edge.waiter)} {escape(edge.waiter.agent)}"
            note = " (see above)" if again else ""
            yield (
                f"{indent}{'└ ' if is_last else '├ '}{short(age(edge.waiter.since, self._at)):>4} {name}{note}",
                self._style(key),
            )
            if not again:
                self._shown.add(key)
                below = self._waiters.get(key, [])
                deeper = indent + ("  " if is_last else "│ ")
                stack += [(edge, deeper, edge is below[-1]) for edge in reversed(below)]

    def _style(self, key: tuple[object, ...]) -> str:
        return "red" if key in self._cyclic else ""


def _key(ticket: TicketInfo) -> tuple[object, ...]:
    """Identify a caller; without an identity of its own, each ticket stands for itself."""
    return (ticket.caller,) if ticket.caller else (ticket.host, ticket.pid, ticket.agent, ticket.fence, ticket.since)


def _edge(edge: WaitEdge) -> str:
    blocker = edge.blocker
    verb = "is queued before it" if blocker.fence is None else f"holds it with fence {blocker.fence}"
    return (
        f"{host_pid(edge.waiter)} ({escape(edge.waiter.agent)}) waits for {display_name(edge.lock)}; "
        f"{host_pid(blocker)} ({escape(blocker.agent)}) {verb}"
    )
