"""Hazard: `holdfast run --once` runs a command twice for a key, or not at all."""

from __future__ import annotations

import signal
from pathlib import Path

import holdfast
from tests.integration.cli.run.conftest import Runs
from tests.support.processes import eventually


def state(runs: Runs, key: str = "k") -> str | None:
    with holdfast.Client(runs.url) as client:
        info = client.once(key).inspect()
        return None if info is None else info.state


def test_a_key_runs_once_and_later_calls_are_skipped(runs: Runs) -> None:
    assert runs.run("--once", "k", "echo", "first") == (0, "first\n", "")
    assert runs.run("--once", "k", "echo", "second") == (0, "", "")
    assert "has had its run" in runs.run("--once", "-v", "k", "echo", "third")[2]

    assert state(runs) == "done"
    with holdfast.Client(runs.url) as client:
        assert not client.once("k").run(lambda: None).ran


def test_a_command_that_fails_runs_again_or_is_remembered(runs: Runs) -> None:
    assert runs.run("--once", "k", "sh", "-c", "exit 3")[0] == 3
    assert state(runs) is None
    assert runs.run("--once", "--after-error", "remember", "k", "sh", "-c", "exit 3")[0] == 3

    status, _, errors = runs.run("--once", "k", "true")

    assert status == 121
    assert "CommandFailed: exit status 3" in errors


def test_a_killed_run_is_interrupted_or_repeated(runs: Runs, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    first = runs.start("--once", "k", "sh", "-c", f"touch {begun}; sleep 600")
    eventually(begun.exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    eventually(lambda: state(runs) == "interrupted")  # the guard has killed the command

    status, out, errors = runs.run("--once", "k", "echo", "second")
    retried = runs.run("--once", "--after-crash", "retry", "k", "echo", "third")

    assert (status, out) == (121, "")
    assert "was interrupted" in errors
    assert retried[:2] == (0, "third\n")
    assert runs.run("--once", "k", "echo", "fourth")[:2] == (0, "")


def test_a_busy_key_waits_or_has_the_status_of_a_busy_lock(runs: Runs, tmp_path: Path) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    first = runs.start("--once", "k", "sh", "-c", f"touch {begun}; while ! test -e {end}; do sleep 0.05; done")
    eventually(begun.exists)

    assert runs.run("--once", "-n", "k", "echo", "second")[:2] == (124, "")
    waiting = runs.start("--once", "k", "echo", "third")
    end.touch()

    assert first.wait() == 0
    assert waiting.communicate()[0] == ""
    assert waiting.returncode == 0


def test_options_of_once_need_it(runs: Runs) -> None:
    assert "needs --once" in runs.run("--retention", "1d", "k", "true")[2]
    assert "not allowed" in runs.run("--once", "--revocable", "k", "true")[2]
    assert "not allowed" in runs.run("--once", "--shared", "k", "true")[2]
