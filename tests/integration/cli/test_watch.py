"""Hazard: `holdfast watch` misses or misreports a change, ends at an outage, or leaves the terminal dirty."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cli.watch.changes import Change, diff
from holdfast.core.tickets import LockInfo, TicketInfo
from tests.integration.cli.conftest import CliStore, StartOnTerminal
from tests.support.processes import PATIENCE, Worker, WorkerPool
from tests.support.terminals import ESCAPE_CODES

FAST = ("--interval", "0.05")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")


class Watching:
    """`holdfast watch` on a pipe, and its lines so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._rest = b""

    def line(self, *words: str) -> str:
        """Return the next line with all these words; earlier lines are skipped, but kept."""
        assert self.process.stdout is not None
        while True:
            while b"\n" not in self._rest:
                ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
                assert ready, f"no line with {words}:\n{self.lines}"
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"ended without {words}:\n{self.lines}"
                self._rest += data
            first, _, self._rest = self._rest.partition(b"\n")
            self.lines.append(first.decode() + "\n")
            if all(word in self.lines[-1] for word in words):
                return self.lines[-1]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=PATIENCE)
        self.lines += (self._rest.decode() + out).splitlines(keepends=True)
        assert errors == ""
        return self.process.returncode


@pytest.fixture
def watching(store: CliStore) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Watching:
        process = store.start("watch", *FAST, *arguments)
        started.append(process)
        return Watching(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


# ── on a pipe ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_watch_prints_a_timestamped_line_per_change_to_a_pipe(
    store: CliStore, pool: WorkerPool, holder: Worker, watching: Any
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    watch = watching()
    watch.line("holds", f"/{holder.pid}  fence {fence}")

    waiter = pool.start(store.url)
    waiter.call("wait", lock="a")
    watch.line("waits", f"/{waiter.pid}")
    holder.call("release", lock="a")
    watch.line("released", f"/{holder.pid}  fence {fence}")
    watch.line("acquired", f"/{waiter.pid}  fence ")
    waiter.call("release", lock="a")
    watch.line("released", f"/{waiter.pid}")

    assert watch.end(signal.SIGTERM) == 143
    assert all(STAMP.match(line) for line in watch.lines)
    assert not [line for line in watch.lines if " left " in line]  # the waiter acquired it
    assert "\x1b" not in "".join(watch.lines)


def test_watch_reports_a_dead_waiter_as_left(store: CliStore, pool: WorkerPool, holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="a")
    waiter = pool.start(store.url)
    waiter.call("wait", lock="a")
    store.await_waiters("a", 1)
    watch = watching()
    watch.line("waits", f"/{waiter.pid}")

    waiter.kill()

    watch.line("left", f"/{waiter.pid}")


def test_watch_prints_one_json_object_per_line(holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="begun: two\nlines")
    watch = watching("--json", "begun")
    first = json.loads(watch.line("holds"))
    holder.call("hold", lock="other")
    fence = holder.call("hold", lock="begun too", meta={"n": 1})["fence"]

    second = json.loads(watch.line("acquired"))

    assert (first["change"], first["lock"], first["pid"]) == ("holds", "begun: two\nlines", holder.pid)
    assert (second["lock"], second["fence"], second["meta"]) == ("begun too", fence, {"n": 1})
    assert second["time"] >= first["time"] > second["since"] - 3600
    assert watch.end(signal.SIGINT) == 130
    assert "other" not in "".join(watch.lines)


def test_watch_continues_after_an_outage_of_the_store(store: CliStore, holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="a")
    watch = watching("--json")
    watch.line("holds")
    gone = take_away(store)

    unavailable = json.loads(watch.line("unavailable"))
    store.path.rmdir()
    gone.rename(store.path)

    assert unavailable["problem"]
    watch.line('"available"')
    assert watch.end(signal.SIGTERM) == 143
    assert "".join(watch.lines).count('"unavailable"') == 1  # reported once, not at every poll


def test_watch_ends_when_the_reader_closes_the_pipe_without_any_change(
    store: CliStore, holder: Worker, watching: Any
) -> None:
    holder.call("hold", lock="a")
    watch = watching()
    watch.line("holds")

    watch.process.stdout.close()

    assert watch.process.wait(PATIENCE) == 141
    assert watch.process.stderr.read() == ""


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────────────────────


def test_watch_redraws_a_table_in_place_until_ctrl_c(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    fence = holder.call("hold", lock="nightly-report")["fence"]
    terminal = start_on_terminal("watch", *FAST)
    terminal.read_until(f"{fence}")
    holder.call("release", lock="nightly-report")
    terminal.read_until("no lock is in use")
    terminal.read_until("  after")  # which is drawn below it

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert re.search(r"\x1b\[\d+A", terminal.output)  # cursor up, then redrawn
    assert re.search(rf"\d\d:\d\d:\d\d  released  nightly-report  \S+/{holder.pid}  after", terminal.text)
    assert "Traceback" not in terminal.output
    assert_clean(terminal.output)
    assert terminal.text.endswith("ended by SIGINT\r\n")


def test_watch_leaves_the_terminal_clean_after_sigterm(holder: Worker, start_on_terminal: StartOnTerminal) -> None:
    holder.call("hold", lock="a")
    terminal = start_on_terminal("watch", "--interval", "3600")
    terminal.read_until("waiters")

    terminal.process.send_signal(signal.SIGTERM)

    assert terminal.finish() == 143  # at once, for any interval
    assert_clean(terminal.output)


def test_watch_shows_an_outage_on_the_terminal(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    holder.call("hold", lock="a")
    terminal = start_on_terminal("watch", *FAST)
    terminal.read_until("waiters")
    gone = take_away(store)

    terminal.read_until("NOT AVAILABLE, last read ")
    store.path.rmdir()
    gone.rename(store.path)

    terminal.read_until(" available")
    terminal.type("\x03")
    assert terminal.finish() == 130


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 10), (200, 5)])
def test_the_table_never_exceeds_the_terminal(
    holder: Worker, start_on_terminal: StartOnTerminal, columns: int, lines: int
) -> None:
    holder.call("hold_many", locks=[f"{number:03} {'錠' * 100} x" for number in range(100)])
    terminal = start_on_terminal("watch", *FAST, columns=columns, lines=lines)
    terminal.read_until(f"\x1b[{lines - 1}A")  # cursor up by all lines except the one of the cursor

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert {int(height) for height in re.findall(r"\x1b\[(\d+)A", terminal.output)} == {lines - 1}
    assert " more)" in terminal.text
    assert all(wide(line) < columns for line in terminal.text.splitlines())


def test_watch_prints_lines_on_a_terminal_without_cursor_movement(
    holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    holder.call("hold", lock="a")
    terminal = start_on_terminal("watch", *FAST, TERM="dumb")
    terminal.read_until("holds")

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert "\x1b" not in terminal.output


# ── what counts as a change ──────────────────────────────────────────────────────────────────────────────────────


def test_a_waiter_that_acquires_the_lock_is_not_reported_as_left() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(3)))
    after = LockInfo("a", (ticket(2, fence=11),), (ticket(3),))

    assert told(diff([before], [after], 0.0)) == [("released", 1), ("acquired", 2)]


def test_a_new_lease_of_the_same_holder_is_reported() -> None:
    before, after = LockInfo("a", (ticket(1, fence=10),), ()), LockInfo("a", (ticket(1, fence=11),), ())

    assert told(diff([before], [after], 0.0)) == [("released", 1), ("acquired", 1)]


def test_one_of_two_identical_waiters_is_reported_as_left() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(2)))
    after = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert told(diff([before], [after], 0.0)) == [("left", 2)]


def test_equal_reads_have_no_changes() -> None:
    info = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert diff([info], [info], 0.0) == []
    assert diff([], [], 0.0) == []


def test_a_released_lock_is_reported() -> None:
    assert told(diff([LockInfo("a", (ticket(1, fence=10),), (ticket(2),))], [], 0.0)) == [
        ("released", 1),
        ("left", 2),
    ]


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def take_away(store: CliStore) -> Any:
    """Make the store unavailable: replace the file by a folder."""
    gone = store.path.with_suffix(".gone")
    store.path.rename(gone)
    store.path.mkdir()
    return gone


def ticket(pid: int, *, fence: int | None = None) -> TicketInfo:
    return TicketInfo(
        fence=fence,
        host="web-3",
        pid=pid,
        agent="main",
        program="",
        since=0.0,
        remaining=1.0,
        exclusive=True,
        limit=1,
        meta={},
    )


def told(changes: list[Change]) -> list[tuple[str, int]]:
    return [(change.what, change.ticket.pid) for change in changes if change.ticket is not None]


def assert_clean(output: str) -> None:
    assert "\x1b[?25l" not in output  # the cursor was never hidden
    assert "\x1b[?1049h" not in output  # the table stays on screen
    colors = re.findall(r"\x1b\[([0-9;]*)m", output)
    assert colors[-1] == "0"
    assert output.endswith("\n")


def wide(line: str) -> int:
    return sum(2 if character == "錠" else 1 for character in ESCAPE_CODES.sub("", line))
