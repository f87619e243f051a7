"""Hazard: a table of cron on several machines runs a job on each of them, or its owner gets mail without a reason.

The tests run the command lines of examples/cron/crontab as cron does: with /bin/sh, in the home folder, with the
variables of the table and no others. Only the store and the path of `holdfast` differ. Each home folder stands for a
machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.shared import fresh_url

EXAMPLE = Path(__file__).parents[4] / "examples" / "cron"
LINES = [line for line in (EXAMPLE / "crontab").read_text().splitlines() if line and not line.startswith("#")]
VARIABLES = dict(line.split("=", 1) for line in LINES if re.match(r"[A-Z_]+=", line))
COMMANDS = [line.split(None, 5)[5] for line in LINES if re.match(r"([\d*/,-]+\s+){5}\S", line)]
DAY, BEGIN = 86400, 3 * 3600  # --once-per 1d --offset 3h


class Machine:
    """A home folder with the jobs."""

    def __init__(self, home: Path, url: str) -> None:
        shutil.copytree(EXAMPLE / "jobs", home / "jobs")
        self.home = home
        self._started: list[subprocess.Popen[str]] = []
        path = f"{Path(sys.executable).parent}:{VARIABLES['PATH']}"
        self.environment = {**VARIABLES, "HOME": str(home), "LOGNAME": "user", "HOLDFAST_URL": url, "PATH": path}

    def start(self, command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [VARIABLES["SHELL"], "-c", command],
            cwd=self.home,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit status, and the mail."""
        process = self.start(command)
        mail, _ = process.communicate(timeout=PATIENCE * 2)
        return process.returncode, mail

    def log(self, name: str) -> str:
        return (self.home / "log" / f"{name}.log").read_text()


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def machines(tmp_path: Path, url: str) -> Iterator[list[Machine]]:
    made = [Machine(tmp_path / name, url) for name in ("one", "two")]
    yield made
    for machine in made:
        machine.end()


@pytest.fixture
def client(url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(url) as client:
        yield client


def command(job: str) -> str:
    [command_line] = [line for line in COMMANDS if line.startswith(f"jobs/job.sh {job}.log ")]
    return command_line


def runs(machines: list[Machine], name: str, text: str) -> list[list[int]]:
    """The fences of the runs on each machine."""
    return [[int(fence) for fence in re.findall(rf"{text} (\d+)", machine.log(name))] for machine in machines]


def on_each_at_once(machines: list[Machine], line: str) -> list[tuple[int, str]]:
    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(lambda machine: machine.run(line), machines))


def test_each_line_of_the_table_is_a_variable_or_a_command() -> None:
    assert len(VARIABLES) + len(COMMANDS) == len(LINES)
    assert not [line for line in COMMANDS if "%" in line]  # cron replaces it by a line break


def test_the_guide_has_the_files_of_the_example() -> None:
    guide = (EXAMPLE.parents[1] / "docs" / "cron.md").read_text()

    assert (EXAMPLE / "crontab").read_text() in guide
    assert (EXAMPLE / "jobs" / "job.sh").read_text() in guide


def test_a_report_runs_once_a_day_on_one_of_the_machines(machines: list[Machine]) -> None:
    began = (time.time() - BEGIN) // DAY

    outcomes = on_each_at_once(machines, command("report")) + on_each_at_once(machines, command("report"))

    days = int((time.time() - BEGIN) // DAY - began) + 1
    assert outcomes == [(0, "")] * 4
    assert 1 <= sum(map(len, runs(machines, "report", "the report of run"))) <= days
    assert any("has had its run in this period" in machine.log("report") for machine in machines)


def test_a_machine_with_a_later_clock_does_not_run_a_short_job_again(machines: list[Machine]) -> None:
    outcomes = [machine.run(command("sync")) for machine in machines]

    assert outcomes == [(0, "")] * 2
    first, second = runs(machines, "sync", "synchronized, run")
    assert (len(first), second) == (1, [])
    assert "lock 'sync' not acquired" in machines[1].log("sync")


def test_backups_of_all_machines_run_one_after_the_other(machines: list[Machine], client: holdfast.Client) -> None:
    with client.lock("backup"):
        started = [machine.start(command("backup")) for machine in machines]
        eventually(lambda: len(client.inspect("backup").waiters) == 2)

    assert [process.communicate(timeout=PATIENCE * 2)[0] for process in started] == ["", ""]
    (first,), (second,) = runs(machines, "backup", "backup written, run")
    assert first != second
    assert all((machine.home / "backup.tar").exists() for machine in machines)


@pytest.mark.parametrize(
    ("arguments", "status", "mail"),
    [
        ("-n busy true", 124, "the lock was not acquired in time: another run still works; see "),
        ("--url redis://127.0.0.1:1 free true", 125, "the store of the locks is not available, so the job has not run"),
        (
            "--once failed true",
            121,
            "an earlier run of this key was interrupted or failed, so the job has not run; see ",
        ),
        ("free -- sh -c 'exit 7'", 7, "the job failed with status 7; see "),
    ],
)
def test_a_job_that_did_not_run_or_failed_gives_one_line(
    machines: list[Machine], client: holdfast.Client, arguments: str, status: int, mail: str
) -> None:
    machines[0].run("holdfast run --once --after-error remember failed false")
    with client.lock("busy"):
        outcome = machines[0].run(f"jobs/job.sh job.log {arguments}")

    assert outcome[0] == status
    assert mail in outcome[1]
    assert outcome[1].count("\n") == 1


def test_a_job_that_loses_its_lock_is_ended_and_gives_one_line(
    machines: list[Machine], client: holdfast.Client
) -> None:
    process = machines[0].start("jobs/job.sh log --ttl 1.5s a sleep 60")
    eventually(lambda: client.inspect("a").holders != ())
    fence = client.inspect("a").holders[0].fence
    assert fence is not None
    client.break_lock("a", fence=fence)

    mail, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 123
    assert mail.count("\n") == 1
    assert "the lock was lost while the job ran" in mail
