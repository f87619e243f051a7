"""Runs a plan: interleaved rounds (A B C, A B C, …), each case in a process of its own on given cores.

A failure of a case is recorded, and the run continues. At the end of the run, also after an interrupt, the processes of
the case are ended and their files removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.contender import BEFORE
from benchmarks.delay import delayed
from benchmarks.measure import now
from benchmarks.plan import Case, Group
from benchmarks.results import Outcome, Record
from benchmarks.schedule import Schedule
from benchmarks.servers import ServerFailed

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SLOW = 12.0  # seconds; a longer case runs in one round only

# Called before each case with the case, the round and the number of rounds, and after it also with the result.
Progress = Callable[[Case, int, int, Record], None]


def run(
    plan: Sequence[Group],
    *,
    cores: Sequence[int],
    folder: str | None,
    before: Progress = lambda *_: None,
    after: Progress = lambda *_: None,
    schedule: Schedule | None = None,
) -> list[Outcome]:
    """Run the rounds of every group that the schedule has time for, by default all of them.

    Files are written to a new folder in `folder`, or to a temporary folder.
    """
    outcomes = []
    schedule = schedule or Schedule(plan, None)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as root:
        for group in plan:
            records = [Record(case, problem=case.problem) for case in group.cases]
            running = [record for record in records if record.problem is None]
            pinned = {record.case.contender.name: _cores_for(record.case, cores) for record in records}
            schedule.begin_group()
            finished = 0
            for number in range(1, group.rounds + 1):
                if not schedule.has_time_for_round(finished):
                    break
                for record in running:
                    if record.seconds > SLOW:
                        continue
                    before(record.case, number, group.rounds, record)
                    started = now()
                    _run_case(record, pinned[record.case.contender.name], root)
                    record.seconds = now() - started
                    schedule.ran(record.case)
                    after(record.case, number, group.rounds, record)
                finished = number
            as_run = replace(group, rounds=finished)
            outcomes.append(Outcome(as_run, {name: len(used) for name, used in pinned.items()}, records))
    return outcomes


def _cores_for(case: Case, cores: Sequence[int]) -> list[int]:
    """Return one core: the last, because the first handles most interrupts."""
    is_all = case.setting.is_apart or case.measure.cores(case.contender) == "all"
    return list(cores) if is_all else [cores[-1]]


def _run_case(record: Record, cores: list[int], root: str) -> None:
    """Add the figures of a round, or its error, to the record."""
    folder, server = tempfile.mkdtemp(dir=root), record.case.contender.server
    delay = record.case.setting.delay
    server_cores = cores
    if record.case.setting.is_apart and len(cores) > 1:
        server_cores, cores = cores[:-1], cores[-1:]
    try:
        if server is None:
            _run_at(record, cores, folder, folder)
        else:
            with server.run(folder, server_cores) as near, delayed(near, delay, folder, cores) as url:
                _run_at(record, cores, folder, url)
    except ServerFailed as failed:
        record.add_failure(str(failed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_at(record: Record, cores: list[int], folder: str, location: str) -> None:
    case = record.case
    job = {
        "measure": case.measure.name,
        "contender": case.contender.name.removesuffix(BEFORE),
        "numbers": dict(case.setting.numbers),
        "location": location,
        "cores": cores,
        "limit": case.measure.limit,
    }
    with tempfile.TemporaryFile("w+", dir=folder) as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.case", json.dumps(job)],
            cwd=ROOT,
            env=os.environ if case.contender.source is None else {**os.environ, "PYTHONPATH": case.contender.source},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # a process group, so that all child processes are ended with it
        )
        try:
            shown, _ = process.communicate(timeout=case.measure.limit)
        except subprocess.TimeoutExpired:
            record.add_failure(f"no result after {case.measure.limit:g} s")
            return
        finally:
            _end_group(process)
        if process.returncode != 0 or not shown:
            errors.seek(0)
            last = errors.read().strip().rpartition("\n")[2]
            record.add_failure(last or f"ended with status {process.returncode}")
            return
    answer = json.loads(shown)
    if "failed" in answer:
        record.add_failure(answer["failed"])
    else:
        record.rounds.append(answer["figures"])


def _end_group(process: subprocess.Popen[str]) -> None:
    backoff = now() + 5.0  # wait until the killed processes have ended, so that they do not disturb the next case
    with contextlib.suppress(ProcessLookupError):
        while now() < backoff:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.005)
    if process.stdout is not None:
        process.stdout.close()
