"""Hazard: duplicates of a Celery message charge an invoice twice, also if the worker is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.celery import load
from tests.support.intervals import report
from tests.support.processes import eventually
from tests.support.redis.shared import fresh_url

PROGRAM = """
import os, pathlib, time
import celery, holdfast

app = celery.Celery("program", broker="filesystem://", set_as_current=False)
queue = os.environ["QUEUE"]
app.conf.broker_transport_options = {
    "data_folder_in": queue, "data_folder_out": queue, "control_folder": queue, "polling_interval": 0.1
}
client = holdfast.Client(os.environ["STORE"], ttl=1)


def note(line):
    with open("ledger", "a") as ledger:
        ledger.write(line + "\\n")


def pay(invoice):
    note(f"begun {os.getpid()}")
    while pathlib.Path("hold").exists():
        time.sleep(0.01)
    note(f"charged {invoice}")
    return {"receipt": invoice}


def report(charge, invoice):
    try:
        note(f"answer {charge(invoice)['receipt']}")
    except holdfast.OnceInterrupted as error:
        note(f"interrupted {error.pid}")


once = client.once("invoice:{invoice}", result=True)(pay)
retried = client.once("invoice:{invoice}", result=True, after_crash="retry")(pay)


@app.task
def charge(invoice):
    report(once, invoice)


@app.task
def charge_or_retry(invoice):
    report(retried, invoice)
"""


class Celery:
    """A worker with six processes, and the ledger that its tasks write."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        environment = {"STORE": store, "QUEUE": str(folder / "queue")}
        (folder / "queue").mkdir()
        (folder / "program.py").write_text(PROGRAM)
        self._program = load(folder / "program.py", "program", environment)
        self.log = folder / "log"
        options = ("--pool", "prefork", "--concurrency", "6", "--without-gossip", "--without-mingle", "-l", "INFO")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "program", "worker", *options],
                cwd=folder,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, task: str, times: int) -> None:
        for _ in range(times):
            getattr(self._program, task).delay(7)

    def lines(self, word: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "ledger").read_text().splitlines()
            return [line.partition(" ")[2] for line in lines if line.startswith(word)]
        return []

    def kill_in_the_middle(self, task: str) -> int:
        """Kill the process that runs the task, after it has begun and before it has charged."""
        (self.folder / "hold").touch()
        self.send(task, 1)
        eventually(lambda: len(self.lines("begun")) == 1, within=60)
        pid = int(self.lines("begun")[0])
        os.kill(pid, signal.SIGKILL)
        (self.folder / "hold").unlink()
        return pid

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._program.client.close()
        self._program.app.close()


# A store of one machine, which knows of a death, and one of a network. Only the lock of `once` differs, so each test
# runs on one of them by default.
ON_SQLITE = pytest.mark.parametrize("worker", ["sqlite", pytest.param("redis", marks=pytest.mark.extra)], indirect=True)
ON_REDIS = pytest.mark.parametrize("worker", ["redis", pytest.param("sqlite", marks=pytest.mark.extra)], indirect=True)


@pytest.fixture
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    store = fresh_url() if request.param == "redis" else f"sqlite://{tmp_path}/locks.db"
    worker = Celery(tmp_path, store)
    yield worker
    worker.end()
    report(worker.log.read_text())  # shown if the test has failed


@ON_SQLITE
def test_six_duplicates_of_a_message_charge_once(worker: Celery) -> None:
    worker.send("charge", 6)

    eventually(lambda: len(worker.lines("answer")) == 6, within=60)

    assert worker.lines("charged") == ["7"]
    assert worker.lines("answer") == ["7"] * 6


@ON_REDIS
def test_a_killed_run_is_interrupted_and_the_next_message_charges_nothing(worker: Celery) -> None:
    pid = worker.kill_in_the_middle("charge")

    worker.send("charge", 1)

    eventually(lambda: worker.lines("interrupted") == [str(pid)], within=60)
    assert worker.lines("charged") == []


@ON_SQLITE
def test_a_killed_run_is_repeated_by_the_next_message_with_retry(worker: Celery) -> None:
    worker.kill_in_the_middle("charge_or_retry")

    worker.send("charge_or_retry", 3)

    eventually(lambda: len(worker.lines("answer")) == 3, within=60)
    assert worker.lines("charged") == ["7"]
    assert len(worker.lines("begun")) == 2
