"""The demo: workers left behind, a terminal or a folder left dirty, or an "all is well" that was never checked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.demo import words
from holdfast.cli.demo.record import Record
from holdfast.cli.demo.report import Report, What
from holdfast.cli.demo.views import timeline
from tests.support.terminals import PATIENCE, TerminalStarter

DEMO = [sys.executable, "-m", "holdfast", "demo"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The demo's: its temporary folders are made where the test sees them."""
    (tmp_path / "temporary").mkdir()
    ours = {"TMPDIR": str(tmp_path / "temporary"), "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "NO_COLOR": ""}
    return {**os.environ, **ours}


@pytest.fixture
def in_pipe(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the demo without a terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, **more: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*DEMO, *options], env=environment, **pipes, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


Starter = Callable[..., subprocess.Popen[str]]


# ── what it shows ────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_it_tells_the_story_in_plain_lines(in_pipe: Starter, tmp_path: Path) -> None:
    process = in_pipe("--seconds", "2")
    output, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0, output + errors
    assert "\x1b" not in output
    assert errors == ""
    assert re.search(r"worker \d got it, fence \d{16}, waited \d+\.\d{3} s", output)
    assert re.search(r"worker \d got it, fence \+\d+, waited .*; in line: \d", output)
    assert_story_ends_well(output)
    assert_nothing_is_left(plain_pids(output), tmp_path, workers=4)


def test_on_a_terminal_it_draws_a_table_and_leaves_the_story_in_sight(
    on_terminal: TerminalStarter, environment: dict[str, str], tmp_path: Path
) -> None:
    demo = on_terminal([*DEMO, "--seconds", "2", "--workers", "3"], environment)
    status = demo.finish()

    assert status == 0, demo.output
    assert re.search(r"\d +\d+ +HOLDS", demo.text)
    assert re.search(r"\d +\d+ +waiting #2", demo.text)
    assert re.search(r"\d +\d+ +killed", demo.text)
    assert "\x1b[1;32m" in demo.output  # HOLDS, in colour
    assert all(len(line) < 80 for line in demo.text.splitlines())
    assert_story_ends_well(demo.text)
    assert_terminal_is_clean(demo.output)
    assert_nothing_is_left(drawn_pids(demo.text), tmp_path, workers=3)


def test_a_terminal_without_colours_and_unicode_gets_neither(
    on_terminal: TerminalStarter, environment: dict[str, str]
) -> None:
    poor = {**environment, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    demo = on_terminal([*DEMO, "--seconds", "1", "--workers", "2"], poor)
    status = demo.finish()

    assert status == 0, demo.output
    assert "HOLDS" in demo.text
    assert demo.output.isascii()
    assert "\\x" not in demo.text
    assert not re.search(r"\x1b\[[0-9;]*m", demo.output)


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    on_terminal: TerminalStarter, environment: dict[str, str]
) -> None:
    demo = on_terminal([*DEMO, "--seconds", "1", "--workers", "2"], {**environment, "TERM": "dumb"})
    status = demo.finish()

    assert status == 0, demo.output
    assert "\x1b" not in demo.output
    assert_story_ends_well(demo.output)


def test_a_store_given_by_its_url_is_used_and_left_without_a_trace_of_the_lock(
    in_pipe: Starter, tmp_path: Path
) -> None:
    import holdfast

    url = f"sqlite://{tmp_path}/given.db"
    process = in_pipe("--seconds", "1", "--workers", "2", "--url", url)
    output, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0, output + errors
    assert f"store: {url}" in output
    with holdfast.Client(url) as client:
        assert client.locks() == []


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_ends_it_with_130_and_leaves_terminal_folder_and_processes_clean(
    on_terminal: TerminalStarter, environment: dict[str, str], tmp_path: Path
) -> None:
    demo = on_terminal([*DEMO, "--seconds", "30"], environment)
    demo.read_until("HOLDS")

    demo.type("\x03")

    assert demo.finish() == 130, demo.output
    assert "Traceback" not in demo.output
    assert_terminal_is_clean(demo.output)
    assert_nothing_is_left(drawn_pids(demo.text), tmp_path, workers=4)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_leaving_anything(
    in_pipe: Starter, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = in_pipe("--seconds", "30")
    seen = read_lines_until("got it", process)

    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode == status, output + errors
    assert errors == ""
    assert_nothing_is_left(plain_pids(seen), tmp_path, workers=4)


def test_workers_do_not_outlive_a_demo_that_is_killed(in_pipe: Starter) -> None:
    process = in_pipe("--seconds", "30")
    seen = read_lines_until("got it", process)

    process.kill()

    pids = plain_pids(seen)
    assert len(pids) == 4
    deadline = time.monotonic() + PATIENCE
    while any(map(is_worker, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_worker(pid)]}"
        time.sleep(0.01)


def test_a_reader_that_goes_away_ends_it_quietly(in_pipe: Starter, tmp_path: Path) -> None:
    process = in_pipe("--seconds", "30")
    seen = read_lines_until("got it", process)

    assert process.stdout is not None
    process.stdout.close()
    process.wait(PATIENCE)

    assert process.returncode == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert_nothing_is_left(plain_pids(seen), tmp_path, workers=4)


@pytest.mark.parametrize(
    ("url", "statuses"),
    # Root may write everywhere, says access(2), so for root that folder is refused only by the kernel, and later.
    [("memory://", [2]), ("nonsense", [2]), ("sqlite:///proc/nowhere/locks.db", [2, 125])],
)
def test_a_store_that_cannot_be_used_is_one_clear_line(in_pipe: Starter, url: str, statuses: list[int]) -> None:
    process = in_pipe("--url", url)
    output, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode in statuses
    assert output == ""
    assert re.fullmatch(r"holdfast: .+\n", errors)


# ── whether it would notice ──────────────────────────────────────────────────────────────────────────────────────


def test_turns_that_touch_but_do_not_overlap_are_fine() -> None:
    record = record_of(turn(1, 10, 1.0, 2.0), turn(2, 11, 2.0, 3.0))
    record.add_kill(3, at=3.0)
    add(record, turn(1, 12, 3.5, 4.0))

    assert record.problems() == []
    assert record.takeover_time() == 0.5


def test_two_that_hold_at_the_same_time_are_noticed() -> None:
    record = record_of(turn(1, 10, 1.0, 2.0), turn(2, 11, 1.9, 3.0))

    assert len(record.overlaps()) == 1
    assert "workers 1 and 2 held the lock at the same time" in record.problems()
    assert any(line.startswith("FAILED: workers 1 and 2") for line in words.summary(record, 3.0, 30.0))


def test_a_short_turn_inside_a_long_one_does_not_hide_the_long_one() -> None:
    record = record_of(turn(1, 10, 1.0, 9.0), turn(2, 11, 2.0, 3.0), turn(3, 12, 4.0, 5.0))

    assert [(first.worker, second.worker) for first, second in record.overlaps()] == [(1, 2), (1, 3)]


def test_a_turn_that_begins_while_another_never_ended_is_noticed() -> None:
    record = record_of(turn(1, 10, 1.0, None), turn(2, 11, 8.0, 9.0))

    assert len(record.overlaps()) == 1


def test_a_turn_that_begins_before_the_holder_was_killed_is_noticed() -> None:
    record = record_of(turn(1, 10, 1.0, None), turn(2, 11, 2.9, None))
    record.add_kill(1, at=3.0)

    assert len(record.overlaps()) == 1


@pytest.mark.parametrize("fence", [10, 9])
def test_a_fence_that_does_not_grow_is_noticed(fence: int) -> None:
    record = record_of(turn(1, 10, 1.0, 2.0), turn(2, fence, 3.0, 4.0))

    assert f"fence {fence} came after 10 and is not greater" in record.problems()


def test_a_death_after_which_nobody_gets_the_lock_is_noticed() -> None:
    record = record_of(turn(1, 10, 1.0, None))
    record.add_kill(1, at=2.0)

    assert "nobody took over from worker 1 after its death" in record.problems()


def test_a_worker_that_ends_by_itself_is_noticed() -> None:
    record = record_of(turn(1, 10, 1.0, 2.0))
    record.add(Report(2, "ended", 3.0, text="ended with status 1"))

    assert "worker 2 ended with status 1" in record.problems()


def test_the_bar_shows_who_held_it_longest_in_each_part_of_the_last_seconds() -> None:
    record = record_of(turn(1, 10, 101.0, 102.9), turn(2, 11, 103.0, None))

    assert timeline(record.turns, None, 104.5, 8) == [None, None, None, None, 1, 1, 2, 2]
    assert timeline(record.turns, (1, 102.9), 104.5, 8) == [None, None, None, None, 1, -1, 2, 2]


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def turn(worker: int, fence: int, start: float, end: float | None) -> list[Report]:
    """What a worker says in one turn; end None: it has it still."""
    said: list[tuple[What, float]] = [("asks", start - 0.5), ("got", start)]
    if end is not None:
        said.append(("done", end))
    return [Report(worker, what, at, fence) for what, at in said]


def record_of(*turns: list[Report]) -> Record:
    record = Record([1, 2, 3])
    for one in turns:
        add(record, one)
    return record


def add(record: Record, turn: list[Report]) -> None:
    for report in turn:
        record.add(report)


def assert_story_ends_well(text: str) -> None:
    assert re.search(r"kill -9 \d+: worker \d dies while it holds the lock", text)
    assert re.search(r"worker \d took over \S+ m?s after the kill \(ttl 30 s\)", text)
    turns = re.search(r"^(\d+) turns of \d workers", text, re.MULTILINE)
    assert turns is not None
    assert int(turns[1]) >= 3
    assert re.search(r"^0 overlaps", text, re.MULTILINE)
    assert re.search(r"^fences from \d{16} to \d{16}", text, re.MULTILINE)
    assert re.search(r"^longest wait \d", text, re.MULTILINE)
    assert re.search(r"^hand-over \d.* \(median\)", text, re.MULTILINE)
    assert re.search(r"^takeover \S+ m?s after kill -9, although the ttl is 30 s", text, re.MULTILINE)
    assert text.rstrip().splitlines()[-1].startswith("all checks passed")


def assert_terminal_is_clean(output: str) -> None:
    assert output.rfind("\x1b[?25l") <= output.rfind("\x1b[?25h")  # the cursor is shown
    assert "\x1b[?1049h" not in output  # what was drawn stays in sight
    colors = re.findall(r"\x1b\[([0-9;]*)m", output)
    assert colors[-1] == "0"
    assert output.endswith("\n")


def assert_nothing_is_left(pids: set[int], tmp_path: Path, *, workers: int) -> None:
    assert len(pids) == workers
    assert [pid for pid in pids if is_worker(pid)] == []
    assert list((tmp_path / "temporary").iterdir()) == []


def plain_pids(output: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"^worker \d is process (\d+)", output, re.MULTILINE)}


def drawn_pids(text: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"^ +\d +(\d+) +(?:HOLDS|waiting|resting|starting)", text, re.MULTILINE)}


def is_worker(pid: int) -> bool:
    """A worker of the demo runs under this pid; the pid may be somebody else's by now, or that of a zombie."""
    try:
        os.kill(pid, 0)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, PermissionError):
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # no /proc on this system: believe the pid
    return b"holdfast.cli.demo.worker" in command


def read_lines_until(text: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"ended without {text!r}:\n{seen}")
