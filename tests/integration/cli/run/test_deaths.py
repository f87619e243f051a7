"""Hazard: `holdfast run` dies or is stopped, and its command keeps working while another client holds the lock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.threads.client import Client
from tests.integration.cli.run.conftest import STAMPER, Runs, Stamps, children, is_running, state_of
from tests.support.processes import PATIENCE, eventually, now

NEXT = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))"  # when the command of the next holder began
FILL_AND_EXEC = """
import os, sys
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x")
except BlockingIOError:
    pass
os.set_blocking(2, True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def wait_for_a_waiter(client: Client) -> None:
    eventually(lambda: bool(client.inspect("a").waiters))


def next_start(process: subprocess.Popen[str]) -> float:
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return float(out)


# By default with 0, 1 and 2 children, once each.
@pytest.mark.parametrize("time", [*range(3), *(pytest.param(time, marks=pytest.mark.extra) for time in range(3, 9))])
def test_the_next_command_starts_only_after_the_command_of_a_killed_run_has_ended(
    runs: Runs, stamps: Stamps, client: Client, time: int
) -> None:
    holder = runs.start("a", "--", *STAMPER, str(stamps.path), "--children", str(time % 3))
    stamps.wait_for(processes=1 + time % 3)
    waiter = runs.start("a", "--", sys.executable, "-c", NEXT)
    wait_for_a_waiter(client)

    holder.kill()

    started = next_start(waiter)
    assert stamps.last() < started
    assert not [pid for pid in stamps.pids() if is_running(pid)]


@pytest.mark.parametrize("time", range(2))
def test_the_next_command_starts_only_after_the_command_of_a_killed_run_and_guard_has_ended(
    runs: Runs, stamps: Stamps, client: Client, time: int
) -> None:
    holder = runs.start("a", "--", *STAMPER, str(stamps.path))
    stamps.wait_for()
    waiter = runs.start("a", "--", sys.executable, "-c", NEXT)
    wait_for_a_waiter(client)
    (guard,) = children(holder.pid)

    for pid in (holder.pid, guard) if time % 2 else (guard, holder.pid):
        os.kill(pid, signal.SIGKILL)

    assert stamps.last() < next_start(waiter)


def test_the_whole_command_is_killed_and_the_lock_released_when_the_guard_is_killed(runs: Runs, stamps: Stamps) -> None:
    holder = runs.start("a", "--", *STAMPER, str(stamps.path), "--children", "2")
    stamps.wait_for(processes=3)
    (guard,) = children(holder.pid)

    os.kill(guard, signal.SIGKILL)

    _, errors = holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 128 + signal.SIGKILL
    assert "guard process was killed" in errors
    assert not [pid for pid in stamps.pids() if is_running(pid)]
    assert runs.run("a", "-n", "--", "true")[0] == 0


def test_the_guard_kills_the_command_at_the_deadline_when_run_is_stopped(runs: Runs, stamps: Stamps) -> None:
    holder = runs.start("a", "--ttl", "3", "--", *STAMPER, str(stamps.path), "--children", "1", "--ignore-term")
    stamps.wait_for(processes=2)

    stopped = now()
    os.kill(holder.pid, signal.SIGSTOP)
    eventually(lambda: not any(map(is_running, stamps.pids())))

    assert state_of(holder.pid) == "T"  # the guard killed it
    assert stamps.last() <= stopped + 3  # the ttl
    os.kill(holder.pid, signal.SIGCONT)
    holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123


def test_the_command_does_not_outlive_the_lock_when_the_guard_is_stopped(
    runs: Runs, stamps: Stamps, client: Client
) -> None:
    holder = runs.start("a", "--ttl", "3", "--", *STAMPER, str(stamps.path))
    stamps.wait_for()
    (guard,) = children(holder.pid)

    os.kill(guard, signal.SIGSTOP)
    (lease,) = client.inspect("a").holders
    assert lease.fence is not None
    client.break_lock("a", lease.fence)

    eventually(lambda: not any(map(is_running, stamps.pids())))
    os.kill(guard, signal.SIGCONT)
    holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123


def test_the_command_is_killed_on_resume_when_all_processes_were_stopped_past_the_ttl(
    runs: Runs, stamps: Stamps
) -> None:
    holder = runs.start("a", "--ttl", "3", "--", *STAMPER, str(stamps.path))
    stamps.wait_for()
    (guard,) = children(holder.pid)
    (command,) = stamps.pids()

    for pid in (command, guard, holder.pid):
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: runs.run("a", "-n", "--", "true")[0] == 0)  # the lease has expired
    for pid in (guard, command, holder.pid):
        with contextlib.suppress(ProcessLookupError):  # the guard may have killed it already
            os.kill(pid, signal.SIGCONT)

    holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123
    assert not is_running(command)


# ── the lease ends while all processes run ───────────────────────────────────────────────────────────────────────────


def test_the_command_is_killed_when_the_lock_file_is_deleted(runs: Runs, stamps: Stamps) -> None:
    holder = runs.start("a", "--", *STAMPER, str(stamps.path), "--ignore-term")
    stamps.wait_for()

    deleted = now()
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{runs.file}{suffix}")

    _, errors = holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123
    assert "was lost" in errors
    assert stamps.last() <= deleted + 30  # the ttl: its deadline


def test_the_command_is_killed_when_the_lease_is_broken(runs: Runs, stamps: Stamps, client: Client) -> None:
    holder = runs.start("a", "--ttl", "3", "--", *STAMPER, str(stamps.path), "--ignore-term")
    stamps.wait_for()
    (lease,) = client.inspect("a").holders
    assert lease.fence is not None

    assert client.break_lock("a", lease.fence)

    _, errors = holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123
    assert "ran out or was broken, or the server lost its data" in errors
    assert not any(map(is_running, stamps.pids()))


_BLOCKER = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print(1, flush=True); input()"
)


def block_renewals(runs: Runs) -> subprocess.Popen[str]:
    """Hold the write lock of the lock file, so that no renewal succeeds."""
    command = [sys.executable, "-c", _BLOCKER, str(runs.file)]
    blocker = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert blocker.stdout is not None
    blocker.stdout.readline()
    return blocker


def test_the_command_receives_sigterm_before_a_lease_that_cannot_be_renewed_ends(runs: Runs) -> None:
    script = "trap 'echo tidying up; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    holder = runs.start("a", "--ttl", "3", "--grace", "1.4", "--", "sh", "-c", script)
    assert holder.stdout is not None
    holder.stdout.readline()

    with block_renewals(runs) as blocker:
        out, errors = holder.communicate(timeout=PATIENCE)
        blocker.kill()

    assert out == "tidying up\n"
    assert holder.returncode == 123
    assert "no renewal succeeded" in errors


def test_a_command_that_ignores_sigterm_is_killed_at_the_deadline(runs: Runs, stamps: Stamps) -> None:
    holder = runs.start("a", "--ttl", "3", "--", *STAMPER, str(stamps.path), "--ignore-term", "--children", "1")
    stamps.wait_for(processes=2)

    with block_renewals(runs) as blocker:
        since = now()
        holder.communicate(timeout=PATIENCE)
        blocker.kill()

    assert holder.returncode == 123
    assert stamps.last() <= since + 3  # the ttl


def test_max_hold_ends_a_command_that_takes_too_long(runs: Runs, stamps: Stamps) -> None:
    status, _, errors = runs.run("a", "--ttl", "3", "--max-hold", "0.8", "--", *STAMPER, str(stamps.path))

    assert status == 123
    assert "max_hold of 0.8 s was reached" in errors


def test_max_hold_keeps_the_lock_until_the_command_has_ended(
    runs: Runs, stamps: Stamps, client: Client, tmp_path: Path
) -> None:
    before, earlier = now(), Stamps(tmp_path / "earlier")
    runs.start("b", "--", *STAMPER, str(earlier.path), "--children", "2")
    earlier.wait_for(processes=3)
    max_hold = 1 + 3 * (now() - before)  # the same command starts before that, on a busy machine too
    command = [*STAMPER, str(stamps.path), "--ignore-term", "--children", "2"]
    holder = runs.start("a", "--ttl", "3", "--max-hold", f"{max_hold:.3f}", "--", *command)
    stamps.wait_for(processes=3)
    (guard,) = children(holder.pid)

    os.kill(guard, signal.SIGSTOP)  # so that the command is killed later than at max_hold, by `holdfast run`
    lease = client.lock("a").acquire(timeout=PATIENCE)
    acquired = now()

    assert lease is not None
    assert stamps.last() < acquired
    assert not any(map(is_running, stamps.pids()))
    lease.release()
    holder.communicate(timeout=PATIENCE)
    assert holder.returncode == 123


def test_the_command_is_killed_in_time_when_the_reader_of_stderr_does_not_read(
    runs: Runs, stamps: Stamps, client: Client
) -> None:
    # The command fills the pipe of standard error, and the test does not read it.
    command = [sys.executable, "-c", FILL_AND_EXEC, *STAMPER, str(stamps.path)]
    holder = runs.start("a", "--ttl", "6", "--", *command)
    stamps.wait_for()
    (lease,) = client.inspect("a").holders
    assert lease.fence is not None

    client.break_lock("a", lease.fence)
    broken = now()
    eventually(lambda: not any(map(is_running, stamps.pids())))

    assert stamps.last() < broken + 4  # a third of the ttl, and time for a busy machine
    holder.wait(PATIENCE)
    assert holder.returncode == 123
