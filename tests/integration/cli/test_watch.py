"""Hazard: `holdfast watch` misses or misreports a change, ends at an outage, or prints control codes."""

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

from tests.integration.cli.conftest import CliStore, StartOnTerminal
from tests.support.processes import PATIENCE, Worker, WorkerPool

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
    gone = make_unavailable(store)

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


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_watch_prints_plain_lines_on_a_terminal_until_ctrl_c(
    holder: Worker, start_on_terminal: StartOnTerminal, term: str
) -> None:
    name = f"a {'錠' * 100}"
    holder.call("hold", lock=name)
    terminal = start_on_terminal("watch", *FAST, TERM=term)
    terminal.read_until("holds")
    holder.call("release", lock=name)
    terminal.read_until("released")

    terminal.type("\x03")

    assert terminal.finish() == 130
    lines = [line for line in terminal.output.splitlines() if STAMP.match(line)]
    assert [name in line for line in lines] == [True, True]  # not shortened
    assert "\x1b" not in terminal.output


def test_a_signal_ends_watch_at_once_for_any_interval(holder: Worker, start_on_terminal: StartOnTerminal) -> None:
    holder.call("hold", lock="a")
    terminal = start_on_terminal("watch", "--interval", "3600")
    terminal.read_until("holds")

    terminal.process.send_signal(signal.SIGTERM)

    assert terminal.finish() == 143


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def make_unavailable(store: CliStore) -> Any:
    """Make the store unavailable: replace the file by a folder."""
    gone = store.path.with_suffix(".gone")
    store.path.rename(gone)
    store.path.mkdir()
    return gone
