"""Hazard: a job of cron on several machines runs twice in a period, because the first run ended before the second."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.threads.client import Client
from tests.integration.cli.run.conftest import Runs
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.clock import WallClock
from tests.support.redis.shared import fresh_url
from tests.support.server_process import missing

PERIOD = 15 * 60  # seconds
JOB = ["sh", "-c", 'echo "$(uname -n) $HOLDFAST_FENCE"']


class Machine:
    """Processes with a host name and a wall clock of their own."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        self.name = name
        self.clock = WallClock(folder / name)
        self._environment = {**self.clock.environment, "HOLDFAST_URL": url}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        set_host = f'echo {self.name} > /proc/sys/kernel/hostname && exec env "$@"'
        return subprocess.Popen(
            [
                *("unshare", "--uts", "sh", "-c", set_host, "sh"),
                *(f"{name}={value}" for name, value in self._environment.items()),
                *(sys.executable, "-m", "holdfast", "run", *arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def machines(tmp_path: Path) -> list[Machine]:
    """Two machines, at the beginning of a period; the clock of the second is a minute fast."""
    probe = subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True, text=True)
    if probe.returncode:
        missing(f"a host name of its own needs root: {probe.stderr.strip()}")
    url = fresh_url()
    made = [Machine(name, tmp_path, url) for name in ("one", "two")]
    to_next_period = PERIOD - time.time() % PERIOD
    for machine, ahead in zip(made, (1, 61), strict=True):
        machine.clock.step(to_next_period + ahead)
    return made


def test_a_fast_cron_job_on_two_machines_runs_once_in_each_period(machines: list[Machine]) -> None:
    hosts = []
    for _ in range(2):
        calls = [machine.start("--once-per", "15m", "report", *JOB) for machine in machines]

        outputs = [call.communicate(timeout=PATIENCE) for call in calls]

        assert [call.returncode for call in calls] == [0] * 2, outputs
        assert not any(errors for _, errors in outputs)  # which cron would send by mail
        (run,) = [out for out, _ in outputs if out]
        hosts.append(run.split()[0])
        for machine in machines:
            machine.clock.step(PERIOD)

    assert set(hosts) <= {"one", "two"}


def test_two_calls_one_after_the_other_run_once(machines: list[Machine]) -> None:
    first, second = machines

    ran = first.start("--once-per", "15m", "report", *JOB).communicate(timeout=PATIENCE)
    skipped = second.start("--once-per", "15m", "-v", "report", *JOB).communicate(timeout=PATIENCE)

    assert (ran[0].split()[0], ran[1]) == ("one", "")
    assert skipped[0] == ""
    assert skipped[1].endswith(" skipped: 'report' has had its run in this period\n")


def test_a_run_that_failed_is_not_repeated_in_its_period(runs: Runs) -> None:
    assert runs.run("--once-per", "365d", "report", "--", "sh", "-c", "exit 7")[0] == 7
    assert runs.run("--once-per", "365d", "report", "--", "sh", "-c", "exit 7")[0] == 0


def test_a_call_is_skipped_as_busy_when_the_last_run_still_holds_the_lock(runs: Runs, client: Client) -> None:
    with client.lock("report"):
        status, out, errors = runs.run("--once-per", "365d", "report", "--", "echo", "ran")

    assert (status, out) == (124, "")
    assert "lock 'report' not acquired" in errors


def test_a_call_waits_for_the_last_run_with_a_timeout(runs: Runs, client: Client) -> None:
    with client.lock("report"):
        call = runs.start("--once-per", "365d", "--timeout", "1m", "report", "--", "echo", "ran")
        eventually(lambda: bool(client.inspect("report").waiters))

    assert call.communicate(timeout=PATIENCE)[0] == "ran\n"


def test_the_command_line_and_the_decorator_share_the_runs_of_a_name(runs: Runs, client: Client) -> None:
    report = client.once_per("365d", name="report")(lambda: "ran")

    assert report() == "ran"
    assert runs.run("--once-per", "365d", "report", "--", "echo", "ran") == (0, "", "")
