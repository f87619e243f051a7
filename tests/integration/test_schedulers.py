"""Hazard: two schedulers, on two machines, run every job twice, or at the same time. The examples do not."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.schedulers.background import BackgroundScheduler

import holdfast
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.shared import fresh_url

EXAMPLES = Path(__file__).parents[2] / "examples"
PERIOD = 2  # seconds, as in both examples


class Program(NamedTuple):
    """A process that runs an example."""

    process: subprocess.Popen[bytes]
    path: Path

    def output(self) -> str:
        return self.path.read_text()


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program that gets SIGTERM at the end of the test. `output` is the name of a file that it appends to."""
    started: list[Program] = []

    def start_program(*command: str, output: str, **environment: str) -> Program:
        path = tmp_path / output
        variables = {**os.environ, "HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db", **environment}
        with path.open("ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=EXAMPLES, env=variables, start_new_session=True
            )
        started.append(Program(process, path))
        return started[-1]

    yield start_program
    for program in started:
        program.process.terminate()
    for program in started:
        try:
            assert program.process.wait(30) == 0, program.output()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.process.pid, signal.SIGKILL)  # and its children
            program.process.wait()


def runs(text: str) -> int:
    return len(re.findall(r"run by process \d+", text))


def skips(text: str) -> int:
    return text.count("skipped: this period has its run")


def periods_since(began: float) -> int:
    """The number of periods since then, with the first and the current one."""
    return int(time.time() // PERIOD - began // PERIOD) + 1


def start_two_schedulers(start: Start, kind: str) -> tuple[Program, Program]:
    """Both append to one file, so its lines are in the order in which they were written."""
    options = ["--asyncio"] if kind == "asyncio" else []
    first, second = (start(sys.executable, "apscheduler_job.py", *options, output="output") for _ in range(2))
    return first, second


def lines_of(program: Program) -> str:
    """The lines that this process has written."""
    return "\n".join(re.findall(rf"process {program.process.pid}: .*", program.output()))


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_two_schedulers_run_a_job_once_in_each_period_and_another_one_never_twice_at_once(
    start: Start, kind: str
) -> None:
    began = time.time()
    programs = start_two_schedulers(start, kind)

    def is_seen() -> bool:
        text, have_skipped = programs[0].output(), all(skips(lines_of(program)) for program in programs)
        return runs(text) >= 3 and text.count("sync ends") >= 3 and have_skipped

    eventually(is_seen, within=60)

    text = programs[0].output()
    assert 3 <= runs(text) <= periods_since(began), text
    steps = re.findall(r"process (\d+): sync (begins|ends)", text)
    pairs = zip(steps[::2], steps[1::2], strict=False)
    assert all(first == (second[0], "begins") and second[1] == "ends" for first, second in pairs), text


# With asyncio: `test_two_schedulers_run_a_job_once_in_each_period_and_another_one_never_twice_at_once[asyncio]`.
@pytest.mark.parametrize("kind", ["threads", pytest.param("asyncio", marks=pytest.mark.extra)])
def test_a_scheduler_that_was_stopped_for_periods_does_not_repeat_their_runs(start: Start, kind: str) -> None:
    began = time.time()
    stopped, other = start_two_schedulers(start, kind)
    eventually(lambda: bool(lines_of(stopped)) and bool(lines_of(other)), within=60)

    stopped.process.send_signal(signal.SIGSTOP)
    before = runs(lines_of(other))
    eventually(lambda: runs(lines_of(other)) >= before + 2, within=90)
    calls = lines_of(stopped)
    stopped.process.send_signal(signal.SIGCONT)
    eventually(lambda: len(lines_of(stopped)) > len(calls), within=60)

    assert runs(stopped.output()) <= periods_since(began), stopped.output()


@pytest.mark.parametrize(("grace", "calls"), [({}, 0), ({"misfire_grace_time": 60}, 1)])
def test_a_late_call_of_a_scheduler_is_dropped_without_a_grace_time_and_skipped_if_its_period_is_done(
    holdfast_client: holdfast.Client, grace: dict[str, int], calls: int
) -> None:
    results: list[str] = []
    events: queue.Queue[int] = queue.Queue()
    report = holdfast_client.once_per("1w", name="report", skipped="skipped")(lambda: "run")
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_listener(lambda event: events.put(event.code), EVENT_JOB_MISSED | EVENT_JOB_EXECUTED)
    scheduler.start()
    assert report() == "run"

    late = datetime.now(UTC) - timedelta(seconds=30)
    scheduler.add_job(lambda: results.append(report()), "date", run_date=late, **grace)

    assert events.get(timeout=PATIENCE) == (EVENT_JOB_EXECUTED if calls else EVENT_JOB_MISSED)
    scheduler.shutdown()
    assert results == ["skipped"] * calls


def test_two_beats_of_celery_run_a_task_once_in_each_period(start: Start, tmp_path: Path) -> None:
    began = time.time()
    broker = re.sub(r"/0\?.*", "/5", fresh_url())  # a database that no lock is in
    programs = [
        start(
            *(sys.executable, "-m", "celery", "-A", "celery_beat", "worker", "--beat"),
            *("-s", f"{tmp_path}/schedule-{name}", "-n", f"{name}@%h", "-l", "INFO", "--concurrency", "1"),
            output=name,
            BROKER_URL=broker,
        )
        for name in ("one", "two")
    ]

    def output() -> str:
        return "".join(program.output() for program in programs)

    def is_seen() -> bool:
        sent = [program.output().count("Scheduler: Sending due task report") for program in programs]
        return runs(output()) >= 3 and skips(output()) >= 3 and min(sent) >= 2

    eventually(is_seen, within=90)

    assert 3 <= runs(output()) <= periods_since(began), output()


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

    assert code in (EXAMPLES.parent / "docs" / "schedulers.md").read_text()
