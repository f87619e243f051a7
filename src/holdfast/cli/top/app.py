"""The application: it shows each snapshot of a monitor, and sends requests to release and to break leases."""

# mypy: disable-error-code="unused-awaitable"
# Textual shows and removes pages by itself. A page that awaits its own removal would wait forever.

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input

from holdfast.cli import statuses
from holdfast.cli.lock_info import fences, host_pid
from holdfast.cli.text import display_name, escape, shorten
from holdfast.cli.times import local_time
from holdfast.cli.top import pages, rows
from holdfast.cli.top.widgets import FixedLines, Line, ScrollingLines, SelectableLines, plain, terminal_of
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient
    from holdfast.monitor import AsyncMonitor, LockStatus, Snapshot

Answer = TypeVar("Answer")

_MESSAGE_SECONDS = 15.0  # that the result of a request stays on screen


class TopApp(App[int]):
    """`holdfast top`. The result is the exit status."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title, #heading, #selection { background: $panel; }
    #filter { display: none; height: 1; border: none; background: $surface; }
    .dialog { width: 76; height: auto; max-height: 90%; border: round $error; padding: 0 1; background: $surface; }
    ModalScreen { align: center middle; }
    #fence { border: none; height: 1; margin: 1 0; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
    ]

    def __init__(self, client: AsyncClient, monitor: AsyncMonitor, first: Snapshot, *, interval: float) -> None:
        """`first` is the snapshot to begin with."""
        super().__init__()
        self.snapshot = first
        self.shown_at = 0.0  # when the last snapshot was put on screen, for tests of the delay
        self.is_paused = False
        self.message: tuple[str, str] | None = None  # the result of the last request, and its style
        self.client = client
        self.monitor = monitor
        self._interval = interval
        self._resumed = asyncio.Event()
        self._message_until = 0.0

    def on_mount(self) -> None:
        self.push_screen(TablePage())
        self.run_worker(self._watch(), name="monitor")

    async def _watch(self) -> None:
        self._refresh_pages()
        while True:
            await self.monitor.wait(self.snapshot.next_poll_in(self._interval))
            if self.is_paused:
                self._resumed.clear()
                await self._resumed.wait()
            self.snapshot = await self.monitor.poll()
            self._refresh_pages()

    def _refresh_pages(self) -> None:
        if time.monotonic() > self._message_until:
            self.message = None
        for screen in self.screen_stack:
            if isinstance(screen, Page):
                screen.show()
        self.shown_at = time.time()

    async def action_quit(self) -> None:
        self.exit(statuses.DONE)

    def action_toggle_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._resumed.set()
        self._refresh_pages()

    def find(self, name: str) -> LockStatus | None:
        """Return the lock with this name, if it is in use."""
        return next((lock for lock in self.snapshot.locks if lock.name == name), None)

    def report(self, text: str, *, is_error: bool = False) -> None:
        """Show the result of a request in the status line for some seconds."""
        self.message = (text, "bold red" if is_error else "bold")
        self._message_until = time.monotonic() + _MESSAGE_SECONDS
        self._refresh_pages()

    def revoke(self, name: str) -> None:
        """Ask for confirmation, and request that the present holders release the lock."""
        lock = self.find(name)
        held = [fence for fence in fences(lock.holders) if fence] if lock else []
        if lock is None or not held:
            self.report(f"{_title(name)} has no holder that can receive a request", is_error=True)
            return

        async def request() -> str:
            if not await self.client.request_revoke(name, max(held)):
                return "the lease had already ended"
            not_revocable = sum(not holder.revocable for holder in lock.holders)
            note = f", but {not_revocable} of {len(lock.holders)} not revocable" if not_revocable else ""
            return f"release requested{note}"

        def send(is_confirmed: bool | None) -> None:  # noqa: FBT001 - the result of a dialog
            if is_confirmed:
                self._send(name, request)

        self.push_screen(RevokeDialog(lock), send)

    def break_lease(self, name: str) -> None:
        """Ask for the fence, and break the lease with this fence."""
        lock = self.find(name)
        if lock is None or not lock.holders:
            self.report(f"{_title(name)} has no holder", is_error=True)
            return

        def send(fence: int | None) -> None:
            if fence is not None:

                async def request() -> str:
                    is_broken = await self.client.break_lock(name, fence)
                    return f"fence {fence}: {'broken' if is_broken else 'had already ended'}"

                self._send(name, request)

        self.push_screen(BreakDialog(lock), send)

    def _send(self, name: str, request: Callable[[], Awaitable[str]]) -> None:
        async def run() -> None:
            try:
                self.report(f"{_title(name)}: {await request()}")
            except HoldfastError as error:
                self.report(f"{_title(name)}: {escape(' '.join(str(error).split()))}", is_error=True)

        self.run_worker(run(), name="request")


class Page(Screen[None]):
    """A page with a title, a status line and keys. It draws what the application has read last."""

    app: TopApp

    def compose(self) -> ComposeResult:
        yield FixedLines(id="title")
        yield FixedLines(id="status")
        yield from self.compose_body()
        yield Footer(compact=True)

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError  # each page has its own

    def show(self) -> None:
        """Draw the present snapshot."""
        with contextlib.suppress(NoMatches):  # the page has no widgets yet, or not any more
            self._show()

    def _show(self) -> None:
        app, snapshot = self.app, self.app.snapshot
        counts = rows.summary(snapshot)
        clock = local_time(snapshot.at)[-8:]
        room = self.size.width - len(counts) - len(clock) - len("holdfast top") - 6
        url = shorten(escape(app.client.url), max(0, room))
        color = "bold red" if snapshot.graph.cycles else "bold"
        self.query_one("#title", FixedLines).show(
            [("holdfast top", "bold"), (f"  {url:<{max(0, room)}}  ", ""), (counts, color), (f"  {clock}", "")]
        )
        self.query_one("#status", FixedLines).show(self._status())
        self.show_body()

    def show_body(self) -> None:
        raise NotImplementedError  # each page has its own

    def on_resize(self) -> None:
        self.show()

    def on_screen_resume(self) -> None:
        self.show()

    def notes(self) -> list[str]:
        """Return the notes of this page for the status line."""
        return []

    def _status(self) -> Line:
        """The most important part comes first, because the end of a long line is cut off."""
        app, snapshot = self.app, self.app.snapshot
        parts: list[tuple[str, str]] = []
        if app.is_paused:
            parts.append((f"PAUSED since {local_time(snapshot.at)[-8:]}", "bold yellow"))
        if app.message is not None:
            parts.append(app.message)
        if snapshot.error is not None:
            problem = escape(" ".join(str(snapshot.error).split()))
            parts.append((f"NOT AVAILABLE, last read {local_time(snapshot.read_at)[-8:]}: {problem}", "bold red"))
        if snapshot.searched < 1:
            parts.append((f"searching: {snapshot.searched:.0%} of the keys", "yellow"))
        parts += [(note, "dim") for note in self.notes()]
        parts += [(f"warning: {escape(warning)}", "yellow") for warning in snapshot.warnings]
        return [part for shown in parts for part in (shown, ("  ", ""))]


class TablePage(Page):
    """The table of all locks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "Reverse", show=False),
        Binding("space", "app.toggle_pause", "Pause", key_display="Space"),
        Binding("g", "graph", "Graph"),
        Binding("r", "revoke", "Revoke"),
        Binding("b", "break", "Break"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
        Binding("escape", "clear_filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = rows.Order()
        self._filter = ""
        self._hidden = 0

    def compose_body(self) -> ComposeResult:
        yield FixedLines(id="heading")
        yield SelectableLines(id="locks")
        yield FixedLines(id="selection", height=2)
        yield Input(id="filter", placeholder="part of a name, host, pid or program", compact=True)

    def on_mount(self) -> None:
        self.query_one("#locks").focus()
        self.show()

    def show_body(self) -> None:
        snapshot, table = self.app.snapshot, self.query_one("#locks", SelectableLines)
        locks = self._order.sort([lock for lock in snapshot.locks if rows.matches(lock, self._filter)])
        self._hidden = len(snapshot.locks) - len(locks)
        deadlocked = {edge.lock for cycle in snapshot.graph.cycles for edge in cycle}
        terminal = terminal_of(max(20, table.scrollable_content_region.width))
        heading, lines = pages.table(locks, snapshot.read_at, self._order, deadlocked, terminal)
        self.query_one("#heading", FixedLines).show(heading)
        table.show_keyed([lock.name for lock in locks], lines)
        self._show_selection()
        self.query_one("#status", FixedLines).show(self._status())  # which counts the hidden locks

    def notes(self) -> list[str]:
        order = f"sorted by {self._order.column} {'▼' if self._order.is_descending() else '▲'}"
        hidden = f"filter: {escape(self._filter)}  ({self._hidden:,} hidden, Esc shows all)"
        return [hidden, order] if self._filter else [order, f"read in {self.app.snapshot.poll_seconds:.2f} s"]

    def _show_selection(self) -> None:
        name = self.query_one("#locks", SelectableLines).selected
        lock = None if name is None else self.app.find(name)
        text = "no lock matches the filter" if self._filter else "no lock is in use"
        lines = [plain(text)] if lock is None else pages.selection(lock, self.app.snapshot.read_at, self.size.width)
        self.query_one("#selection", FixedLines).show(*lines)

    def on_selectable_lines_selected(self) -> None:
        self._show_selection()

    def on_selectable_lines_opened(self) -> None:
        self._on_selected(lambda name: self.app.push_screen(LockPage(name)))

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self.show()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def action_clear_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#locks").focus()

    def action_sort(self) -> None:
        self._order = self._order.next()
        self.show()

    def action_reverse(self) -> None:
        self._order = self._order._replace(is_reversed=not self._order.is_reversed)
        self.show()

    def action_graph(self) -> None:
        self.app.push_screen(GraphPage())

    def action_help(self) -> None:
        self.app.push_screen(HelpPage())

    def action_revoke(self) -> None:
        self._on_selected(self.app.revoke)

    def action_break(self) -> None:
        self._on_selected(self.app.break_lease)

    def _on_selected(self, action: Callable[[str], object]) -> None:
        name = self.query_one("#locks", SelectableLines).selected
        if name is not None:
            action(name)


class _LinesPage(Page):
    """A page of lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", key_display="Esc"),
        Binding("space", "app.toggle_pause", "Pause", key_display="Space"),
        Binding("q", "app.quit", "Quit"),
    ]

    def compose_body(self) -> ComposeResult:
        yield ScrollingLines(id="lines")

    def on_mount(self) -> None:
        self.query_one("#lines").focus()
        self.show()

    def show_body(self) -> None:
        lines = self.query_one("#lines", ScrollingLines)
        lines.show(self.lines(max(20, lines.scrollable_content_region.width)))

    def lines(self, columns: int) -> list[Line]:
        raise NotImplementedError  # each page has its own


class LockPage(_LinesPage):
    """Everything about one lock."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "revoke", "Revoke"),
        Binding("b", "break", "Break"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name_of_lock = name

    def lines(self, columns: int) -> list[Line]:
        name, app = self._name_of_lock, self.app
        return pages.lock_page(app.find(name), name, app.monitor.history(name), app.snapshot, terminal_of(columns))

    def action_revoke(self) -> None:
        self.app.revoke(self._name_of_lock)

    def action_break(self) -> None:
        self.app.break_lease(self._name_of_lock)


class GraphPage(_LinesPage):
    """The wait-for graph."""

    def lines(self, columns: int) -> list[Line]:
        return pages.graph_page(self.app.snapshot, terminal_of(columns))


class HelpPage(_LinesPage):
    """The keys."""

    def lines(self, columns: int) -> list[Line]:
        return [plain(line) for line in pages.HELP.splitlines()]


class _LockDialog(ModalScreen[Answer]):
    """A dialog about a lock. It answers None if it is cancelled."""

    def __init__(self, lock: LockStatus) -> None:
        super().__init__()
        self._lock = lock


class RevokeDialog(_LockDialog[bool]):
    """Confirm a request to release. Only `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "confirm", "Request the release"),
        Binding("n,escape,q", "dismiss", "Cancel"),
    ]

    def compose(self) -> ComposeResult:
        lines = [plain(f"Request that these holders release {_title(self._lock.name)}?", "bold"), plain("")]
        for holder in self._lock.holders[:_HOLDERS_MAX]:
            note = "" if holder.revocable else "  not revocable"
            lines.append(plain(f"fence {holder.fence}  {host_pid(holder)}{note}"))
        lines += [
            *_more(self._lock),
            plain(""),
            plain("A holder that is not revocable does not receive the request."),
            plain("y  send the request       n, Esc  cancel"),
        ]
        yield _dialog(lines)

    def action_confirm(self) -> None:
        self.dismiss(True)  # noqa: FBT003 - the result of the dialog


class BreakDialog(_LockDialog[int]):
    """Ask for the fence of the lease to break. No single key breaks a lease."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel")]

    def compose(self) -> ComposeResult:
        lines = [plain(f"Break a lease of {_title(self._lock.name)}", "bold red"), plain("")]
        lines += [plain(f"fence {holder.fence}  {host_pid(holder)}") for holder in self._lock.holders[:_HOLDERS_MAX]]
        lines += [
            *_more(self._lock),
            plain(""),
            plain("The holder notices the loss at its next renewal and may work until"),
            plain("then, at the same time as the next holder."),
            plain("Type the fence and press Enter; Esc cancels:"),
        ]
        yield _dialog(lines, Input(id="fence", restrict="[0-9]*", compact=True), FixedLines(id="problem"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.isdecimal() and int(event.value) in fences(self._lock.holders):
            self.dismiss(int(event.value))
        else:
            self.query_one("#problem", FixedLines).show(plain("no holder has this fence: nothing was broken", "red"))


_HOLDERS_MAX = 8  # in a dialog


def _title(name: str) -> str:
    return shorten(display_name(name), 35)


def _more(lock: LockStatus) -> list[Line]:
    hidden = len(lock.holders) - _HOLDERS_MAX
    return [plain(f"and {hidden} more, see the page of the lock")] if hidden > 0 else []


def _dialog(lines: list[Line], *fields: Input | FixedLines) -> Vertical:
    text = FixedLines(id="text", height=len(lines))
    text.show(*lines)
    return Vertical(text, *fields, classes="dialog")
