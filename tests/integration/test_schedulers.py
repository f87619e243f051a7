"""Hazard: two schedulers, on two machines, run every job twice. The examples run it once in each period."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.redis.shared import fresh_url

EXAMPLES = Path(__file__).parents[2] / "examples"
PERIOD = 2  # seconds, as in both examples

Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program that is told to end with the test; where its output goes."""
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def go(*command: str, **environment: str) -> Path:
        path = tmp_path / f"output-{len(started)}"
        variables = {**os.environ, "HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db", **environment}
        with path.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=EXAMPLES, env=variables, start_new_session=True
            )
        started.append((process, path))
        return path

    yield go
    for process, _ in started:
        process.terminate()
    for process, path in started:
        try:
            assert process.wait(30) == 0, path.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its children
            process.wait()


def runs(outputs: list[Path]) -> list[str]:
    return [pid for output in outputs for pid in re.findall(r"run by process (\d+)", output.read_text())]


def skips(output: Path) -> int:
    return output.read_text().count("skipped: this period has its run")


def periods_since(began: float) -> int:
    """How many there were, those that had begun before and go on now included."""
    return int(time.time() // PERIOD - began // PERIOD) + 1


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_two_schedulers_run_a_job_once_in_each_period(start: Start, kind: str) -> None:
    began = time.time()
    options = ["--asyncio"] if kind == "asyncio" else []
    outputs = [start(sys.executable, "apscheduler_job.py", *options) for _ in range(2)]

    eventually(lambda: len(runs(outputs)) >= 3 and all(skips(output) for output in outputs), within=60)

    found = len(runs(outputs))
    assert 3 <= found <= periods_since(began), [output.read_text() for output in outputs]


def test_two_beats_of_celery_run_a_task_once_in_each_period(start: Start, tmp_path: Path) -> None:
    began = time.time()
    broker = re.sub(r"/0\?.*", "/5", fresh_url())  # a database that no lock is in
    outputs = [
        start(
            *(sys.executable, "-m", "celery", "-A", "celery_beat", "worker", "--beat"),
            *("-s", f"{tmp_path}/schedule-{name}", "-n", f"{name}@%h", "-l", "INFO", "--concurrency", "1"),
            BROKER_URL=broker,
        )
        for name in ("one", "two")
    ]

    def is_seen() -> bool:
        sent = [output.read_text().count("Scheduler: Sending due task report") for output in outputs]
        return len(runs(outputs)) >= 3 and sum(map(skips, outputs)) >= 3 and min(sent) >= 2

    eventually(is_seen, within=90)

    found = len(runs(outputs))
    assert 3 <= found <= periods_since(began), [output.read_text() for output in outputs]


@pytest.mark.parametrize(
    ("example", "begin", "end"),
    [
        ("apscheduler_job.py", "PERIOD = ", "\n\n\nasync def with_asyncio"),
        ("apscheduler_job.py", "async def with_asyncio", "\n\n\nif __name__"),
        ("celery_beat.py", "app = Celery", None),
    ],
)
def test_the_docs_have_the_code_of_the_examples(example: str, begin: str, end: str | None) -> None:
    source = (EXAMPLES / example).read_text()
    code = source[source.index(begin) : None if end is None else source.index(end)].strip()

    assert code in (EXAMPLES.parent / "docs" / "once-per.md").read_text()
