"""Hazard: `holdfast run` returns an ambiguous status, misdirects a signal, or leaves a lock held."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from holdfast.threads.client import Client
from tests.integration.cli.run.conftest import STAMPER, Runs, Stamps, is_running
from tests.support.processes import PATIENCE, eventually


def test_the_environment_of_the_command_has_lock_and_fence(runs: Runs) -> None:
    code = "import json, os; print(json.dumps([os.environ['HOLDFAST_LOCK'], os.environ['HOLDFAST_FENCE']]))"

    first, second = (json.loads(runs.run("näme with space", "--", sys.executable, "-c", code)[1]) for _ in range(2))

    assert first[0] == second[0] == "näme with space"
    assert int(first[1]) < int(second[1])


@pytest.mark.parametrize(
    "before",
    [
        ["a", "--ttl", "9", "--"],
        ["--ttl", "9", "a", "--"],
        ["--ttl", "9", "a"],
        ["-vw0", "--ttl=9", "a"],
        ["a", "-v"],
        ["--", "-dashed"],
        ["--", "-dashed", "--"],
    ],
    ids=" ".join,
)
def test_options_after_the_command_belong_to_the_command(runs: Runs, before: list[str]) -> None:
    status, out, _ = runs.run(*before, "echo", "--ttl", "--", "-n")

    assert (status, out) == (0, "--ttl -- -n\n")


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_run_returns_the_status_of_the_command(runs: Runs, status: int) -> None:
    assert runs.run("a", "--", "sh", "-c", f"exit {status}")[0] == status


def test_run_returns_128_plus_the_signal_that_ended_the_command(runs: Runs) -> None:
    assert runs.run("a", "--", "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("/", 126)])
def test_run_names_a_command_that_cannot_start_and_releases_the_lock(runs: Runs, command: str, status: int) -> None:
    returned, _, errors = runs.run("a", "--", command)

    assert returned == status
    assert repr(command) in errors
    assert runs.run("a", "-n", "--", "true")[0] == 0


def test_run_exits_with_125_when_the_store_is_unavailable(runs: Runs) -> None:
    runs.file.parent.mkdir()
    runs.file.write_text("not a database, but a long enough text to be taken for a damaged one")

    status, _, errors = runs.run("a", "--", "true")

    assert status == 125
    assert "not a lock file" in errors


# ── busy ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wait", [["-n"], ["--no-wait"], ["-w", "0.2"], ["--timeout", "0"]])
def test_run_exits_with_124_when_the_lock_is_busy(runs: Runs, client: Client, wait: list[str]) -> None:
    with client.lock("a"):
        status, _, errors = runs.run("a", *wait, "--", "true")

    assert status == 124
    assert f"/{os.getpid()}" in errors  # the holder
    assert not client.inspect("a").waiters


def test_busy_status_changes_the_status_for_a_busy_lock(runs: Runs, client: Client) -> None:
    with client.lock("a"):
        assert runs.run("a", "-n", "-E", "0", "--", "true")[0] == 0


def test_run_waits_until_the_lock_is_released(runs: Runs, client: Client) -> None:
    with client.lock("a"):
        waiter = runs.start("a", "-v", "--", "echo", "done")
        eventually(lambda: bool(client.inspect("a").waiters))

    out, errors = waiter.communicate(timeout=PATIENCE)
    assert (waiter.returncode, out) == (0, "done\n")
    waiting_line, acquired_line = errors.splitlines()
    moment = r"holdfast: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.match(f"{moment} waiting for lock 'a', held by ", waiting_line)
    assert re.match(f"{moment} got lock 'a', fence ", acquired_line)


def test_min_hold_keeps_the_lock_after_a_fast_command(runs: Runs, client: Client) -> None:
    assert runs.run("a", "--min-hold", "1h", "--", "echo", "done")[:2] == (0, "done\n")

    (holder,) = client.inspect("a").holders
    assert holder.remaining > 3000
    assert runs.run("a", "-n", "--", "true")[0] == 124


def test_a_lock_is_free_after_its_min_hold(runs: Runs) -> None:
    assert runs.run("a", "--min-hold", "500ms", "--", "true")[0] == 0

    assert runs.run("a", "-w", "1m", "--", "true")[0] == 0


# ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shared_commands_run_together_and_block_exclusive_ones(runs: Runs, client: Client, stamps: Stamps) -> None:
    for _ in range(2):
        runs.start("a", "--shared", "--", *STAMPER, str(stamps.path))

    stamps.wait_for(processes=2)

    assert len(client.inspect("a").holders) == 2
    assert runs.run("a", "-n", "--", "true")[0] == 124


def test_a_semaphore_admits_its_limit(runs: Runs, stamps: Stamps) -> None:
    for _ in range(2):
        runs.start("a", "--semaphore", "2", "--", *STAMPER, str(stamps.path))

    stamps.wait_for(processes=2)

    assert runs.run("a", "-n", "--semaphore", "2", "--", "true")[0] == 124
    status, _, errors = runs.run("a", "-n", "--semaphore", "3", "--", "true")
    assert (status, "limit=2" in errors) == (2, True)


def test_the_holder_has_the_command_and_meta(runs: Runs, client: Client, stamps: Stamps) -> None:
    runs.start("a", "--meta", "ticket=OPS-7", "--", *STAMPER, str(stamps.path))

    stamps.wait_for()

    (holder,) = client.inspect("a").holders
    assert (holder.program, holder.meta) == (os.path.basename(sys.executable), {"ticket": "OPS-7"})


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"])
def test_signals_are_forwarded(runs: Runs, name: str) -> None:
    script = f"trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    process = runs.start("a", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(getattr(signal, f"SIG{name}"))

    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, f"got {name}\n")


def test_a_signal_ends_the_children_of_the_command_too(runs: Runs, stamps: Stamps) -> None:
    process = runs.start("a", "--", *STAMPER, str(stamps.path), "--children", "2")
    stamps.wait_for(processes=3)

    process.terminate()

    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not any(map(is_running, stamps.pids()))


def test_ignored_signals_stay_ignored(runs: Runs, tmp_path: Path) -> None:
    ready, go_on = tmp_path / "ready", tmp_path / "go on"
    script = f"touch '{ready}'; until [ -e '{go_on}' ]; do sleep 0.01; done; grep SigIgn /proc/self/status"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        process = runs.start("a", "--", "sh", "-c", script)
    finally:
        signal.signal(signal.SIGHUP, before)
    eventually(ready.exists)

    process.send_signal(signal.SIGHUP)

    go_on.touch()
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    ignored = int(out.split()[1], 16)
    assert ignored & 1 << (signal.SIGHUP - 1)
    assert not ignored & 1 << (signal.SIGPIPE - 1)  # ignored by Python itself


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_removes_the_queue_entry(runs: Runs, client: Client, number: signal.Signals) -> None:
    with client.lock("a"):
        waiter = runs.start("a", "--", "true")
        eventually(lambda: bool(client.inspect("a").waiters))

        waiter.send_signal(number)

        _, errors = waiter.communicate(timeout=PATIENCE)
        assert waiter.returncode == 128 + number
        assert not errors
        assert not client.inspect("a").waiters


def test_further_signals_do_not_interrupt_the_removal_of_the_queue_entry(runs: Runs, client: Client) -> None:
    with client.lock("a"):
        waiter = runs.start("a", "--", "true")
        eventually(lambda: bool(client.inspect("a").waiters))

        with contextlib.closing(sqlite3.connect(runs.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the entry cannot be removed yet
            for _ in range(20):
                waiter.send_signal(signal.SIGINT)
                time.sleep(0.005)  # so that they are delivered one by one
            assert waiter.poll() is None
            other.execute("ROLLBACK")

        _, errors = waiter.communicate(timeout=PATIENCE)
        assert waiter.returncode == 128 + signal.SIGINT
        assert not errors
        assert not client.inspect("a").waiters


# ── processes and files that remain ──────────────────────────────────────────────────────────────────────────────────


def test_the_lock_is_kept_until_the_children_of_the_command_have_ended(runs: Runs, stamps: Stamps) -> None:
    script = f"{' '.join(STAMPER)} {stamps.path} & echo $!"
    process = runs.start("a", "--", "sh", "-c", script)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stderr is not None
    assert "the lock is kept" in process.stderr.readline()

    assert runs.run("a", "-n", "--", "true")[0] == 124
    os.kill(child, signal.SIGTERM)

    assert process.wait(PATIENCE) == 0
    assert runs.run("a", "-n", "--", "true")[0] == 0


def test_a_daemon_that_has_left_the_session_does_not_keep_the_lock(runs: Runs) -> None:
    code = "from subprocess import *; print(Popen(['sleep', '300'], start_new_session=True, stdout=DEVNULL).pid)"
    process = runs.start("a", "--", sys.executable, "-W", "ignore", "-c", code)
    assert process.stdout is not None
    daemon = int(process.stdout.readline())
    try:
        assert process.wait(PATIENCE) == 0
        assert is_running(daemon)
        assert runs.run("a", "-n", "--", "true")[0] == 0
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_reader_of_stdout_sees_the_end_of_file_when_the_command_closes_it(runs: Runs) -> None:
    script = "trap 'exit 3' TERM; echo first; exec 1>&-; while :; do sleep 0.05; done"
    process = runs.start("a", "--", "sh", "-c", script)
    assert process.stdout is not None

    assert process.stdout.read() == "first\n"
    process.terminate()

    assert process.wait(PATIENCE) == 3


def test_run_leaves_no_files_except_the_lock_file(runs: Runs) -> None:
    assert runs.run("a", "--", "true")[0] == 0

    assert not os.listdir(f"{runs.file}-sessions")
