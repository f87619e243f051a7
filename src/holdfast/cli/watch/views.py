"""How watching looks: a table drawn in place for a terminal, a line for each change for a pipe, JSON for a program."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from holdfast.cli.durations import age, long, moment, stamp
from holdfast.cli.facts import who
from holdfast.cli.ls import table
from holdfast.cli.tables import Column, draw
from holdfast.cli.terminal import Picture, Terminal
from holdfast.cli.text import escape, shown
from holdfast.cli.watch.changes import Change, What
from holdfast.core.tickets import LockInfo

_RED, _GREEN, _YELLOW, _DIM = 31, 32, 33, 2
_COLORS: dict[What, int] = {"acquired": _GREEN, "waits": _YELLOW, "left": _YELLOW, "unavailable": _RED}
_TOLD = 5  # changes that stay in sight
_STORY = (Column(""), Column(""), Column("", flexible=True), Column("", flexible=True, goes=2), Column("", goes=1))


class View(Protocol):
    """One way to show it."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        """What a look found; None: the store could not be asked."""

    def end(self, reason: str) -> None: ...


def choose(url: str, arguments: argparse.Namespace) -> View:
    if arguments.json:
        return Json()
    terminal = Terminal.of(sys.stdout)
    return Live(url, arguments.prefix) if terminal.can_move else Lines()


class Json:
    """One object to a line."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        for change in changes:
            print(json.dumps(change.as_dict()))
        sys.stdout.flush()

    def end(self, reason: str) -> None:
        return


class Lines:
    """One line for each change, never shortened: they are searched later."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        for change in changes:
            print(stamp(change.at), sentence(change))
        sys.stdout.flush()

    def end(self, reason: str) -> None:
        return


class Live:
    """The table of `holdfast ls`, drawn again and again, with the latest changes below it."""

    def __init__(self, url: str, prefix: str) -> None:
        self._heading = f"{escape(url)} {shown(prefix) if prefix else ''}".rstrip()
        self._picture = Picture(sys.stdout)
        self._locks: Sequence[LockInfo] = ()
        self._looked = time.time()
        self._told: list[Change] = []

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        # The last column stays free: some terminals begin a new line when it is written to.
        terminal = Terminal.of(sys.stdout)
        terminal = terminal._replace(columns=terminal.columns - 1)
        now = time.time()
        if locks is not None:
            self._locks, self._looked = locks, now
        self._told = [*self._told, *changes][-_TOLD:]
        heading = terminal.fit(f"holdfast watch  {moment(now)}  {self._heading}", terminal.columns)
        state = [] if locks is not None else [self._trouble(terminal)]
        story = ["", *self._story(terminal)] if self._told and terminal.lines > 2 * _TOLD + 2 else []
        room = terminal.lines - 1 - len(state) - 2 - len(story)  # one line is the cursor's
        lines = [terminal.paint(heading, _DIM), *state, "", *self._table(terminal, max(room, 2)), *story]
        self._picture.draw(lines[: terminal.lines - 1])

    def end(self, reason: str) -> None:
        self._picture.end([reason])

    def _table(self, terminal: Terminal, room: int) -> list[str]:
        if not self._locks:
            return ["no lock is in use"]
        heading, *rows = table(self._locks, terminal, self._looked)
        if len(rows) > room - 1:
            hidden = len(rows) - (room - 2)
            rows = [*rows[: room - 2], terminal.paint(terminal.fit(f"(and {hidden} more)", terminal.columns), _DIM)]
        return [terminal.paint(heading, _DIM), *rows]

    def _trouble(self, terminal: Terminal) -> str:
        since = next((change for change in reversed(self._told) if change.what == "unavailable"), None)
        problem = f": {escape(since.problem)}" if since else ""
        line = f"NOT AVAILABLE, last seen {moment(self._looked)}{problem}"
        return terminal.paint(terminal.fit(line, terminal.columns), _RED)

    def _story(self, terminal: Terminal) -> list[str]:
        rows = [
            (
                time.strftime("%H:%M:%S", time.localtime(change.at)),
                change.what,
                shown(change.lock) if change.ticket else change.problem,
                who(change.ticket) if change.ticket else "",
                _lasted(change),
            )
            for change in self._told
        ]
        _, *lines = draw(_STORY, rows, terminal)
        colors = [_COLORS.get(change.what) for change in self._told]
        return [terminal.paint(line, color) if color else line for line, color in zip(lines, colors, strict=True)]


def sentence(change: Change) -> str:
    """A change in full, as a person reads it."""
    ticket = change.ticket
    if ticket is None:
        return f"{change.what:<11}  {escape(change.problem)}".rstrip()
    fence = f"  fence {ticket.fence}" if ticket.fence is not None else ""
    return f"{change.what:<11}  {shown(change.lock)}  {who(ticket)}{fence}  {_lasted(change)}".rstrip()


def _lasted(change: Change) -> str:
    """How long it had lasted by then, if that is of interest."""
    word = {"holds": "for", "released": "after", "left": "after"}.get(change.what)
    return (
        f"{word} {long(age(change.ticket.since, change.at))}" if word and change.ticket and change.ticket.since else ""
    )
