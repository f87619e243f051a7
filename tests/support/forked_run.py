"""A plugin of pytest: `--workers N` runs the tests in N processes that are forked after the collection.

To import and collect all test files takes several seconds of processor time. Each process of pytest-xdist starts from
the beginning and needs that time again. A forked process has the collected tests already.

Each worker begins with a block of neighbouring tests, which share servers. A worker that has run its block continues
with about half of the largest block that is left. The parent sends the index of a test one test ahead, because pytest
ends those fixtures that the next test does not use; None means that no test is left. The worker answers with a `Result`
for each test. A worker that dies fails the test that it ran; another one is forked for the rest of its block. A worker
that dies after its last test ends the run with an error.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, cast

import pytest

from tests.support.server_process import join_run


class Result(NamedTuple):
    """The reports and the warnings of one test."""

    reports: list[dict[str, Any]]  # of its setup, its call and its teardown
    warnings: list[dict[str, Any]]  # the arguments of pytest_warning_recorded, with a message that can be pickled


class WorkerError(Exception):
    """An error outside of tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the tests in N forked processes; 0, the default, in this one"
    parser.addoption("--workers", type=int, default=0, metavar="N", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers. Without --workers, and to list or debug tests, pytest's own loop does it."""
    option = session.config.option
    if not option.workers or option.collectonly or option.usepdb or session.testsfailed or not session.items:
        return None
    _Parent(session).run(option.workers)
    return True


# ── the parent ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class _Worker:
    name: str
    pid: int
    channel: Connection
    block: list[int]  # the tests that are not sent yet
    sent: list[int] = field(default_factory=list)  # the test that runs, and the next one
    has_all: bool = False  # None was sent

    # The attributes that reports of pytest-xdist have, by which the terminal reporter shows the worker.
    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.name)

    @property
    def _workerinfocache(self) -> str:
        return f"worker {self.name}"


class _Parent:
    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config, self._workers = session, session.config, list[_Worker]()
        self._names = map(str, itertools.count())
        self._pids: list[int] = []

    def run(self, number: int) -> None:
        total = len(self._session.items)
        _folders(self._config).getbasetemp()  # made here, for all workers
        gc.freeze()  # a search for garbage would copy all memory of the collection
        try:
            for index in range(number):
                block = range(total * index // number, total * (index + 1) // number)
                self._start(list(block))
            while self._workers:
                for channel in wait([worker.channel for worker in self._workers]):
                    self._receive(next(worker for worker in self._workers if worker.channel is channel))
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
                    if self._session.shouldstop:
                        raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._workers:  # after an error or an interrupt, or enough failures
                worker.channel.close()
                os.kill(worker.pid, signal.SIGINT)
            statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._pids]
        if any(statuses):
            raise WorkerError(f"a worker ended with {next(filter(None, statuses))} after its tests")

    def _start(self, block: list[int]) -> None:
        name, (ours, theirs) = next(self._names), Pipe()
        # Python ignores an interrupt in a function that runs at the fork. After one in the lines that follow, the child
        # would continue as the parent. `_run_worker` lets interrupts arrive again.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with _without_capture(self._config):
                sys.stdout.flush()
                pid = os.fork()
            if not pid:
                for channel in (ours, *(worker.channel for worker in self._workers)):
                    channel.close()
                _run_worker(self._session, theirs, name)
            theirs.close()
            self._pids.append(pid)
            worker = _Worker(name, pid, ours, block)
            self._workers.append(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self._send_next(worker)
        self._send_next(worker)

    def _send_next(self, worker: _Worker) -> None:
        """Send the next test of its block, or of the largest block of all."""
        if worker.has_all:
            return
        if not worker.block:
            largest = max(self._workers, key=lambda other: len(other.block))
            largest.block, worker.block = self._halves(largest.block)
        index = worker.block.pop(0) if worker.block else None
        if index is None:
            worker.has_all = True
        else:
            worker.sent.append(index)
        with contextlib.suppress(OSError):  # the worker has died, which `_receive` handles
            worker.channel.send(index)

    def _halves(self, block: list[int]) -> tuple[list[int], list[int]]:
        """Two parts of a block. If possible, the tests of a file stay together, so that its fixtures are made once."""
        items, middle = self._session.items, len(block) // 2
        starts = [at for at in range(1, len(block)) if items[block[at]].path != items[block[at - 1]].path]
        at = min(starts, key=lambda start: abs(start - middle), default=middle)
        return block[:at], block[at:]

    def _receive(self, worker: _Worker) -> None:
        result: Result | WorkerError | str | None = None  # a text: the traceback of an interrupt
        with contextlib.suppress(EOFError, OSError):
            result = worker.channel.recv()
        if result is None or isinstance(result, str):
            # Not in an `except` block: in a process that is forked there, some errors of Python have other types.
            self._replace(worker, result)
            return
        if isinstance(result, WorkerError):
            raise result
        hook = self._config.hook
        for warning in result.warnings:
            hook.pytest_warning_recorded.call_historic(kwargs=warning)
        for data in result.reports:
            self._report(worker, hook.pytest_report_from_serializable(config=self._config, data=data))
        worker.sent.pop(0)
        self._send_next(worker)

    def _report(self, worker: _Worker, report: Any) -> None:
        report.node = worker  # as pytest-xdist does; the same object for each report, because the XML report hashes it
        self._config.hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)

    def _replace(self, worker: _Worker, problem: str | None) -> None:
        """Remove a worker that has run its tests, or replace one that died in a test.

        A worker without tests still ends its servers, and may wait for other workers before, so this does not wait.
        """
        self._workers.remove(worker)
        worker.channel.close()
        if not worker.sent:
            return
        item = self._session.items[worker.sent.pop(0)]
        if problem is None:
            self._pids.remove(worker.pid)
            _, status = os.waitpid(worker.pid, 0)
            problem = f"a worker ended with {os.waitstatus_to_exitcode(status)} in this test"
        self._report(worker, pytest.TestReport(item.nodeid, item.location, {}, "failed", problem, "call"))
        self._start(worker.sent + worker.block)


@contextlib.contextmanager
def _without_capture(config: pytest.Config) -> Iterator[None]:
    """Close the files of captured output, because both processes would share them. Afterwards each opens new ones."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    yield
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _folders(config: pytest.Config) -> Any:
    """The fixture `tmp_path_factory`."""
    return cast("Any", config)._tmp_path_factory


# ── a worker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Recorder:
    """Collects the reports and warnings that are sent to the parent."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._result = Result([], [])

    def take(self) -> Result:
        result, self._result = self._result, Result([], [])
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._result.reports.append(data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        plain = warnings.WarningMessage(
            str(warning_message.message), warning_message.category, warning_message.filename, warning_message.lineno
        )
        self._result.warnings.append({"warning_message": plain, "when": when, "nodeid": nodeid, "location": location})


def _run_worker(session: pytest.Session, channel: Connection, name: str) -> NoReturn:
    pid = os.getpid()
    # A child that a test forks has a copy of the channel. If that stayed open, the parent would wait for the child too.
    os.register_at_fork(after_in_child=channel.close)
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            _join(session.config, name)
            _run_tests(session, channel)
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):  # the parent that sent the interrupt has closed the channel
                channel.send(traceback.format_exc())
        except BaseException:  # the parent raises it
            with contextlib.suppress(OSError):
                channel.send(WorkerError(f"in worker {name}: {traceback.format_exc()}"))
        finally:
            if os.getpid() == pid:
                with contextlib.suppress(BaseException):  # after an interrupt
                    session._setupstate.teardown_exact(None)
                channel.close()
                atexit._run_exitfuncs()  # ends servers
    finally:
        # In a block of its own, because after an interrupt of the clean-up this process must not continue as its
        # parent. Nor must a child in which a test has ended.
        os._exit(0 if os.getpid() == pid else 1)


def _join(config: pytest.Config, name: str) -> None:
    """Share servers with the other workers, in a folder of the run. Its own temporary folder is inside it."""
    folders = _folders(config)
    run = folders.getbasetemp()
    folders._basetemp = run / f"worker-{name}"
    folders._basetemp.mkdir(mode=0o700)
    folders._exit_stack.pop_all()  # the parent deletes the folders of earlier runs
    join_run(run)
    config.pluginmanager.unregister(name="terminalreporter")


def _run_tests(session: pytest.Session, channel: Connection) -> None:
    recorder = _Recorder(session.config)
    session.config.pluginmanager.register(recorder)
    recorder.take()  # pytest repeats the warnings of the collection for a new plugin
    try:
        index = channel.recv()
        while index is not None:
            following = channel.recv()
            item = session.items[index]
            item.config.hook.pytest_runtest_protocol(
                item=item, nextitem=None if following is None else session.items[following]
            )
            channel.send(recorder.take())
            index = following
    except (EOFError, BrokenPipeError):
        pass  # the parent has ended
