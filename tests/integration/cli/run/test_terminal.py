"""Hazard: keys reach the wrong process, the command cannot read the terminal, or the shell does not get it back."""

from __future__ import annotations

import os
import signal
import sys

from tests.integration.cli.run.conftest import Runs, state_of
from tests.support.processes import eventually
from tests.support.terminals import TerminalStarter

RUN = [sys.executable, "-m", "holdfast", "run", "a"]


def test_the_command_can_read_from_the_terminal(on_terminal: TerminalStarter, runs: Runs) -> None:
    session = on_terminal([*RUN, "--", "sh", "-c", "echo ready; read line; echo got $line"], runs.environment)
    session.read_until("ready")

    session.type("some words\n")

    session.read_until("got some words")
    assert session.finish() == 0


def test_ctrl_c_reaches_the_command(on_terminal: TerminalStarter, runs: Runs) -> None:
    script = "trap 'echo tidy; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    session = on_terminal([*RUN, "--", "sh", "-c", script], runs.environment)
    session.read_until("ready")

    session.type("\x03")

    session.read_until("tidy")
    assert session.finish() == 5
    assert session.text.count("tidy") == 1  # received once: from the terminal, not from `run` too


def test_ctrl_c_ends_a_script_that_runs_holdfast_run(on_terminal: TerminalStarter, runs: Runs) -> None:
    script = f"{' '.join(RUN)} -- sh -c 'echo ready; exec sleep 300'; echo the script goes on"
    session = on_terminal(["/bin/bash", "-c", script], runs.environment)
    session.read_until("ready")

    session.type("\x03")

    assert session.finish() == -signal.SIGINT
    assert "goes on" not in session.text
    assert runs.run("a", "-n", "--", "true")[0] == 0


def test_ctrl_c_ends_the_wait_for_the_lock(on_terminal: TerminalStarter, runs: Runs) -> None:
    holder = runs.start("a", "--", "sh", "-c", "echo ready; sleep 300")
    assert holder.stdout is not None
    holder.stdout.readline()
    session = on_terminal([*RUN, "--", "true"], runs.environment)
    session.read_until("waiting for lock 'a', held by")

    session.type("\x03")

    assert session.finish() == 128 + signal.SIGINT


def test_ctrl_z_stops_run_and_command_and_the_shell_can_continue_them(on_terminal: TerminalStarter, runs: Runs) -> None:
    session = on_terminal(["/bin/bash", "--norc", "-i"], {**runs.environment, "PS1": "PROMPT ", "HISTFILE": ""})
    session.read_until("PROMPT ")
    script = "echo run''ning; read line; echo got $line; read line; echo again $line"
    session.type(f"{' '.join(RUN)} -- sh -c '{script}'\n")
    session.read_until("running")
    session.type("one\n")
    session.read_until("got one")

    session.type("\x1a")
    session.read_until("Stopped")
    session.type("fg\n")
    session.read_until("fg")
    session.type("two\n")

    session.read_until("again two")
    session.type("echo status=$?; exit 0\n")
    session.read_until("status=0")
    assert session.finish() == 0


def test_a_command_stopped_for_longer_than_its_ttl_is_killed(on_terminal: TerminalStarter, runs: Runs) -> None:
    session = on_terminal([*RUN, "--ttl", "5", "--", "sh", "-c", "echo pid $$; exec sleep 300"], runs.environment)
    session.read_until("pid ")
    session.read_until("\n")
    command = int(session.text.split("pid ")[1].split()[0])

    session.type("\x1a")

    eventually(lambda: state_of(session.process.pid) == "T")
    eventually(lambda: state_of(command) in ("", "Z"))
    os.kill(session.process.pid, signal.SIGCONT)
    assert session.finish() == 123
