"""`holdfast watch`: a change that is not told or told wrongly, an outage that ends it, a terminal left dirty."""

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

from holdfast.cli.watch.changes import Change, between
from holdfast.core.tickets import LockInfo, TicketInfo
from tests.integration.cli.conftest import Place, Screens
from tests.support.processes import PATIENCE, Worker, WorkerPool
from tests.support.terminals import ESCAPE_CODES

FAST = ("--interval", "0.05")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")


class Watching:
    """`holdfast watch` on a pipe, and the lines that it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._rest = b""

    def line(self, *words: str) -> str:
        """The next line that has all these words; those before it are passed over, but kept."""
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
def watching(place: Place) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Watching:
        process = place.start("watch", *FAST, *arguments)
        started.append(process)
        return Watching(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


# ── on a pipe ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_on_a_pipe_every_change_is_a_line_with_a_time(
    place: Place, pool: WorkerPool, holder: Worker, watching: Any
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    watch = watching()
    watch.line("holds", f"/{holder.pid}  fence {fence}")

    waiter = pool.start(place.url)
    waiter.call("wait", lock="a")
    watch.line("waits", f"/{waiter.pid}")
    holder.call("release", lock="a")
    watch.line("released", f"/{holder.pid}  fence {fence}")
    watch.line("acquired", f"/{waiter.pid}  fence ")
    waiter.call("release", lock="a")
    watch.line("released", f"/{waiter.pid}")

    assert watch.end(signal.SIGTERM) == 143
    assert all(STAMP.match(line) for line in watch.lines)
    assert not [line for line in watch.lines if " left " in line]  # the waiter got it
    assert "\x1b" not in "".join(watch.lines)


def test_a_waiter_that_dies_has_left(place: Place, pool: WorkerPool, holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="a")
    waiter = pool.start(place.url)
    waiter.call("wait", lock="a")
    place.await_waiters("a", 1)
    watch = watching()
    watch.line("waits", f"/{waiter.pid}")

    waiter.kill()

    watch.line("left", f"/{waiter.pid}")


def test_json_is_one_object_to_a_line(holder: Worker, watching: Any) -> None:
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


def test_it_outlives_an_outage_of_the_store(place: Place, holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="a")
    watch = watching("--json")
    watch.line("holds")
    gone = take_away(place)

    unavailable = json.loads(watch.line("unavailable"))
    place.path.rmdir()
    gone.rename(place.path)

    assert unavailable["problem"]
    watch.line('"available"')
    assert watch.end(signal.SIGTERM) == 143
    assert "".join(watch.lines).count('"unavailable"') == 1  # said once, not at every look


def test_a_reader_that_goes_away_ends_it_although_nothing_happens(place: Place, holder: Worker, watching: Any) -> None:
    holder.call("hold", lock="a")
    watch = watching()
    watch.line("holds")

    watch.process.stdout.close()

    assert watch.process.wait(PATIENCE) == 141
    assert watch.process.stderr.read() == ""


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────────────────────


def test_on_a_terminal_a_table_is_drawn_in_place_until_ctrl_c(place: Place, holder: Worker, screen: Screens) -> None:
    fence = holder.call("hold", lock="nightly-report")["fence"]
    terminal = screen("watch", *FAST)
    terminal.read_until(f"{fence}")
    holder.call("release", lock="nightly-report")
    terminal.read_until("no lock is in use")
    terminal.read_until("  after")  # which is drawn below it

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert re.search(r"\x1b\[\d+A", terminal.output)  # up, and drawn again
    assert re.search(rf"\d\d:\d\d:\d\d  released  nightly-report  \S+/{holder.pid}  after", terminal.text)
    assert "Traceback" not in terminal.output
    assert_clean(terminal.output)
    assert terminal.text.endswith("ended by SIGINT\r\n")


def test_sigterm_leaves_the_terminal_clean_too(holder: Worker, screen: Screens) -> None:
    holder.call("hold", lock="a")
    terminal = screen("watch", "--interval", "3600")
    terminal.read_until("waiters")

    terminal.process.send_signal(signal.SIGTERM)

    assert terminal.finish() == 143  # at once, however long the interval is
    assert_clean(terminal.output)


def test_an_outage_is_seen_on_the_terminal_and_passes(place: Place, holder: Worker, screen: Screens) -> None:
    holder.call("hold", lock="a")
    terminal = screen("watch", *FAST)
    terminal.read_until("waiters")
    gone = take_away(place)

    terminal.read_until("NOT AVAILABLE, last seen ")
    place.path.rmdir()
    gone.rename(place.path)

    terminal.read_until(" available")
    terminal.type("\x03")
    assert terminal.finish() == 130


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 10), (200, 5)])
def test_no_picture_is_wider_or_higher_than_the_terminal(
    holder: Worker, screen: Screens, columns: int, lines: int
) -> None:
    holder.call("hold_many", locks=[f"{number:03} {'錠' * 100} x" for number in range(100)])
    terminal = screen("watch", *FAST, columns=columns, lines=lines)
    terminal.read_until(f"\x1b[{lines - 1}A")  # up again, by all the lines but the one that the cursor rests in

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert {int(height) for height in re.findall(r"\x1b\[(\d+)A", terminal.output)} == {lines - 1}
    assert " more)" in terminal.text
    assert all(wide(line) < columns for line in terminal.text.splitlines())


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(holder: Worker, screen: Screens) -> None:
    holder.call("hold", lock="a")
    terminal = screen("watch", *FAST, TERM="dumb")
    terminal.read_until("holds")

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert "\x1b" not in terminal.output


# ── what counts as a change ──────────────────────────────────────────────────────────────────────────────────────


def test_a_waiter_that_gets_the_lock_has_not_left() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(3)))
    after = LockInfo("a", (ticket(2, fence=11),), (ticket(3),))

    assert told(between([before], [after], 0.0)) == [("released", 1), ("acquired", 2)]


def test_a_lease_that_follows_another_of_the_same_holder_is_a_change() -> None:
    before, after = LockInfo("a", (ticket(1, fence=10),), ()), LockInfo("a", (ticket(1, fence=11),), ())

    assert told(between([before], [after], 0.0)) == [("released", 1), ("acquired", 1)]


def test_of_two_that_look_alike_in_line_one_may_leave() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(2)))
    after = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert told(between([before], [after], 0.0)) == [("left", 2)]


def test_two_looks_that_are_alike_are_no_change() -> None:
    info = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert between([info], [info], 0.0) == []
    assert between([], [], 0.0) == []


def test_a_lock_that_is_free_again_is_told_of() -> None:
    assert told(between([LockInfo("a", (ticket(1, fence=10),), (ticket(2),))], [], 0.0)) == [
        ("released", 1),
        ("left", 2),
    ]


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def take_away(place: Place) -> Any:
    """The store becomes unavailable: where the file was, there is a folder."""
    gone = place.path.with_suffix(".gone")
    place.path.rename(gone)
    place.path.mkdir()
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
    assert "\x1b[?1049h" not in output  # what was drawn stays in sight
    colors = re.findall(r"\x1b\[([0-9;]*)m", output)
    assert colors[-1] == "0"
    assert output.endswith("\n")


def wide(line: str) -> int:
    return sum(2 if character == "錠" else 1 for character in ESCAPE_CODES.sub("", line))
