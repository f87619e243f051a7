"""The output: a table that is redrawn in place on a terminal, a line per change for a pipe, or JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from holdfast.cli.lock_info import host_pid
from holdfast.cli.ls import table
from holdfast.cli.tables import Column, draw
from holdfast.cli.terminal import Display, Terminal
from holdfast.cli.text import display_name, escape
from holdfast.cli.times import age, local_time, long, timestamp
from holdfast.cli.watch.changes import Change, ChangeKind
from holdfast.core.tickets import LockInfo

_RED, _GREEN, _YELLOW, _DIM = 31, 32, 33, 2
_COLORS: dict[ChangeKind, int] = {"acquired": _GREEN, "waits": _YELLOW, "left": _YELLOW, "unavailable": _RED}
_RECENT_MAX = 5  # changes that stay on screen
_CHANGE_COLUMNS = (
    Column(""),
    Column(""),
    Column("", flexible=True),
    Column("", flexible=True, drop_order=2),
    Column("", drop_order=1),
)


class View(Protocol):
    """One form of output."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        """Show the result of a read. `locks` is None if the store is unavailable."""

    def end(self, reason: str) -> None: ...


def choose(url: str, arguments: argparse.Namespace) -> View:
    if arguments.json:
        return Json()
    terminal = Terminal.of(sys.stdout)
    return Live(url, arguments.prefix) if terminal.can_move_cursor else Lines()


class Json:
    """One JSON object per line."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        for change in changes:
            print(json.dumps(change.as_dict()))
        sys.stdout.flush()

    def end(self, reason: str) -> None:
        return


class Lines:
    """One line per change. Lines are never shortened, so that logs can be searched."""

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        for change in changes:
            print(timestamp(change.at), format_change(change))
        sys.stdout.flush()

    def end(self, reason: str) -> None:
        return


class Live:
    """The table of `holdfast ls`, redrawn in place, with the latest changes below it."""

    def __init__(self, url: str, prefix: str) -> None:
        self._heading = f"{escape(url)} {display_name(prefix) if prefix else ''}".rstrip()
        self._display = Display(sys.stdout)
        self._locks: Sequence[LockInfo] = ()
        self._read_at = time.time()
        self._recent: list[Change] = []

    def show(self, locks: Sequence[LockInfo] | None, changes: Sequence[Change]) -> None:
        # The last column stays empty, because some terminals wrap when it is written.
        terminal = Terminal.of(sys.stdout)
        terminal = terminal._replace(columns=terminal.columns - 1)
        now = time.time()
        if locks is not None:
            self._locks, self._read_at = locks, now
        self._recent = [*self._recent, *changes][-_RECENT_MAX:]
        heading = terminal.fit(f"holdfast watch  {local_time(now)}  {self._heading}", terminal.columns)
        state = [] if locks is not None else [self._unavailable_line(terminal)]
        story = ["", *self._recent_lines(terminal)] if self._recent and terminal.lines > 2 * _RECENT_MAX + 2 else []
        room = terminal.lines - 1 - len(state) - 2 - len(story)  # one line for the cursor
        lines = [terminal.paint(heading, _DIM), *state, "", *self._table(terminal, max(room, 2)), *story]
        self._display.draw(lines[: terminal.lines - 1])

    def end(self, reason: str) -> None:
        self._display.end([reason])

    def _table(self, terminal: Terminal, room: int) -> list[str]:
        if not self._locks:
            return ["no lock is in use"]
        heading, *rows = table(self._locks, terminal, self._read_at)
        if len(rows) > room - 1:
            hidden = len(rows) - (room - 2)
            rows = [*rows[: room - 2], terminal.paint(terminal.fit(f"(and {hidden} more)", terminal.columns), _DIM)]
        return [terminal.paint(heading, _DIM), *rows]

    def _unavailable_line(self, terminal: Terminal) -> str:
        since = next((change for change in reversed(self._recent) if change.what == "unavailable"), None)
        problem = f": {escape(since.problem)}" if since else ""
        line = f"NOT AVAILABLE, last read {local_time(self._read_at)}{problem}"
        return terminal.paint(terminal.fit(line, terminal.columns), _RED)

    def _recent_lines(self, terminal: Terminal) -> list[str]:
        rows = [
            (
                time.strftime("%H:%M:%S", time.localtime(change.at)),
                change.what,
                display_name(change.lock) if change.ticket else change.problem,
                host_pid(change.ticket) if change.ticket else "",
                _duration_text(change),
            )
            for change in self._recent
        ]
        _, *lines = draw(_CHANGE_COLUMNS, rows, terminal)
        colors = [_COLORS.get(change.what) for change in self._recent]
        return [terminal.paint(line, color) if color else line for line, color in zip(lines, colors, strict=True)]


def format_change(change: Change) -> str:
    """Format a change as text."""
    ticket = change.ticket
    if ticket is None:
        return f"{change.what:<11}  {escape(change.problem)}".rstrip()
    fence = f"  fence {ticket.fence}" if ticket.fence is not None else ""
    return (
        f"{change.what:<11}  {display_name(change.lock)}  {host_pid(ticket)}{fence}  {_duration_text(change)}".rstrip()
    )


def _duration_text(change: Change) -> str:
    """Format how long the lease or the wait has lasted, where it applies."""
    word = {"holds": "for", "released": "after", "left": "after"}.get(change.what)
    return (
        f"{word} {long(age(change.ticket.since, change.at))}" if word and change.ticket and change.ticket.since else ""
    )
