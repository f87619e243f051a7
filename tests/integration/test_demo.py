"""Hazard: the demo leaves processes or files behind, or reports success without a check."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.demo.history import Event, History
from holdfast.cli.demo.runner import run
from tests.support.processes import eventually
from tests.support.terminals import PATIENCE

DEMO = [sys.executable, "-m", "holdfast", "demo"]
StartDemo = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of the demo, with a temporary folder that the test can check."""
    (tmp_path / "temporary").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "TERM": "xterm", "NO_COLOR": ""}


@pytest.fixture
def start_demo(environment: dict[str, str]) -> Iterator[StartDemo]:
    """Start the demo without a terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*DEMO, *options], env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_demo_prints_turns_a_kill_and_a_takeover(start_demo: StartDemo, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/given.db"
    process = start_demo("--seconds", "2", "--url", url)
    output, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, errors) == (0, ""), output + errors
    assert "\x1b" not in output
    assert f"store: {url}" in output
    assert re.search(r"worker \d acquired it, fence \d{16}, waited \d+\.\d{3} s", output)
    assert re.search(r"worker \d acquired it, fence \+\d+, waited .*; queue: \d", output)
    assert_successful(output)
    with holdfast.Client(url) as client:
        assert client.locks() == []


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.extra),  # is handled as SIGTERM
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGPIPE, 141, marks=pytest.mark.extra),  # ends it by the same clean-up
        (signal.SIGKILL, -9),
    ],
)
def test_the_end_of_the_demo_leaves_no_process_and_no_file(
    start_demo: StartDemo, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = start_demo("--seconds", "30")
    pids = read_pids(process)
    assert process.stdout is not None
    assert process.stderr is not None

    if number == signal.SIGPIPE:
        process.stdout.close()  # the reader closes the pipe
    else:
        process.send_signal(number)
    process.wait(PATIENCE)

    assert process.returncode == status
    if number == signal.SIGKILL:
        eventually(lambda: not any(map(is_worker, pids)))
    else:
        assert process.stderr.read() == ""
        assert not any(map(is_worker, pids))
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("url", ["memory://", "nonsense"])
def test_an_unusable_store_is_one_line_of_error(start_demo: StartDemo, url: str) -> None:
    process = start_demo("--url", url)
    output, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, output) == (2, "")
    assert re.fullmatch(r"holdfast: .+\n", errors)


def test_a_given_store_needs_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")

    with pytest.raises(holdfast.ConfigurationError, match="private to one process"):
        run(url="memory://", workers=2, seconds=1.0)


def test_the_checks_accept_turns_in_sequence_and_report_every_failure() -> None:
    history = history_of((1, 10, 1.0, 2.0), (2, 11, 2.0, 3.0), (3, 12, 3.0, None))
    history.add_kill(3, at=4.0)
    history.add(Event(1, "acquired", 4.5, fence=13))
    assert history.problems() == []
    assert history.takeover == 0.5

    for turns in (
        [(1, 10, 1.0, 2.0), (2, 11, 1.9, 3.0)],
        [(1, 10, 1.0, 9.0), (3, 11, 9.5, 9.7), (2, 12, 8.0, 8.5)],
        [(1, 10, 1.0, None), (2, 11, 8.0, 9.0)],
    ):
        assert "workers 1 and 2 held the lock at the same time" in history_of(*turns).problems()
    failed = history_of((1, 10, 1.0, 2.0), (2, 10, 3.0, 4.0))
    assert "fence 10 followed 10 and is not greater" in failed.problems()
    assert "no holder was killed" in failed.problems()
    failed.add_kill(1, at=5.0)
    failed.add(Event(2, "ended", 6.0, error="ended with status 1"))
    assert "no worker acquired the lock after worker 1 was killed" in failed.problems()
    assert "worker 2: ended with status 1" in failed.problems()
    assert any(line.startswith("FAILED: ") for line in failed.summary(ttl=30.0))


def history_of(*turns: tuple[int, int, float, float | None]) -> History:
    """A history of turns: worker, fence, start, and end unless it has none."""
    history = History()
    for worker, fence, start, end in turns:
        history.add(Event(worker, "acquired", start, fence, requested=start - 0.5))
        if end is not None:
            history.add(Event(worker, "releasing", end))
    return history


def assert_successful(text: str) -> None:
    for pattern in (
        r"kill -9 \d+: worker \d dies while it holds the lock",
        r"worker \d took over \S+ ms after the kill",
        r"^\d+ turns, 0 overlaps",
        r"^fences from \d{16} to \d{16}",
        r"^longest wait \d",
        r"^takeover \S+ ms after kill -9 \(ttl 30 s\)",
        r"^all checks passed",
    ):
        assert re.search(pattern, text, re.MULTILINE), f"{pattern} is not in:\n{text}"


def read_pids(process: subprocess.Popen[str]) -> set[int]:
    """Read until the first turn. Return the pids of the four workers."""
    assert process.stdout is not None
    output = ""
    while "acquired it" not in output:
        line = process.stdout.readline()
        assert line, f"ended early:\n{output}"
        output += line
    pids = {int(pid) for pid in re.findall(r"^worker \d is process (\d+)", output, re.MULTILINE)}
    assert len(pids) == 4
    return pids


def is_worker(pid: int) -> bool:
    """Whether a worker runs with this pid, which may belong to another process or a zombie by now."""
    try:
        return b"holdfast.cli.demo.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
