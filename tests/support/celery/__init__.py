"""Workers of Celery for tests: real processes, with a Redis as broker and result backend."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.support.processes import PATIENCE, eventually, now
from tests.support.redis.shared import fresh_url

PROGRAM = Path(__file__).with_name("program.py")


class Event(NamedTuple):
    """A line that a task wrote."""

    task: str
    key: str
    state: str
    pid: int
    at: float


class Fleet:
    """An app, its workers and its broker. `program` is the module of tasks, loaded in this process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        # A database without locks.
        self._broker_url = re.sub(r"/0\?.*", "/6", fresh_url())
        self._prefix = f"{uuid.uuid4().hex}:"
        self.environment = {
            "FOLDER": str(folder),
            "KEY_PREFIX": self._prefix,
            "BROKER_URL": self._broker_url,
            "STORE_URL": fresh_url(),
            **environment,
        }
        self._workers: list[subprocess.Popen[bytes]] = []
        self.killed: dict[int, float] = {}  # by process id: the time just before the kill
        shutil.copy(PROGRAM, folder / "program.py")
        self.program: Any = load(PROGRAM, "program", self.environment)

    def start_worker(self, *, pool: str = "prefork", concurrency: int = 2) -> subprocess.Popen[bytes]:
        number = len(self._workers)
        options = ("--pool", pool, "--concurrency", str(concurrency), "--hostname", f"worker-{number}@%h")
        quiet = ("--without-gossip", "--without-mingle", "--loglevel", "INFO")
        with (self.folder / f"output-{number}").open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "program", "worker", *options, *quiet],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to the worker and its children at once: nothing is released, acknowledged or restored."""
        self.killed |= dict.fromkeys(self.children(worker), now())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(PATIENCE)

    def kill_child(self, pid: int) -> None:
        self.killed[pid] = now()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def children(self, worker: subprocess.Popen[bytes]) -> list[int]:
        with contextlib.suppress(OSError):
            pids = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
            return [int(pid) for pid in pids]
        return []

    def events(self, task: str, state: str = "") -> list[Event]:
        """The events of the task, or of all of them, in the order in which they were written."""
        path = self.folder / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines]
        events = [Event(name, key, state, int(pid), float(at)) for name, key, state, pid, at in words]
        return [event for event in events if task in ("", event.task) and event.state.startswith(state)]

    def wait_for(self, task: str, state: str, number: int = 1, within: float = 60.0) -> None:
        try:
            eventually(lambda: len(self.events(task, state)) >= number, within=within)
        except AssertionError as error:
            error.add_note(self.output())
            raise

    def queue(self) -> redis.Redis:
        return redis.Redis.from_url(self._broker_url)

    def duplicate_messages(self, copies: int) -> None:
        """Repeat each message of the queue, as after a broker or publisher has sent it several times."""
        with self.queue() as broker:
            name = f"{self._prefix}celery"
            messages: list[bytes] = broker.lrange(name, 0, -1)
            for message in messages:
                for _ in range(copies):
                    tag = b'"delivery_tag": "%s"' % str(uuid.uuid4()).encode()
                    copy, replaced = re.subn(rb'"delivery_tag": "[^"]*"', tag, message)
                    assert replaced == 1
                    broker.rpush(name, copy)

    def queued(self) -> int:
        """The number of messages that no worker has received."""
        with self.queue() as broker:
            return int(broker.llen(f"{self._prefix}celery"))

    def lose_messages(self) -> None:
        with self.queue() as broker:
            broker.delete(f"{self._prefix}celery")

    def is_idle(self) -> bool:
        """No message is queued, and none is unacknowledged."""
        with self.queue() as broker:
            return not broker.exists(f"{self._prefix}celery", f"{self._prefix}unacked")

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output-*")))

    def close(self) -> None:
        for worker in self._workers:
            self.kill_worker(worker)
        self.program.client.close()
        self.program.app.backend.client.connection_pool.disconnect()
        self.program.app.close()
        with self.queue() as broker:
            keys = [*broker.scan_iter(f"{self._prefix}*")]
            if keys:
                broker.delete(*keys)


@contextlib.contextmanager
def fleet(folder: Path, **environment: str) -> Iterator[Fleet]:
    workers = Fleet(folder, **environment)
    try:
        yield workers
    finally:
        workers.close()


def load(path: Path, name: str, environment: Mapping[str, str]) -> Any:
    """Load a module of tasks as the workers do, with these environment variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        os.environ.clear()
        os.environ.update(before)


def overlaps(events: Sequence[Event], killed: Mapping[int, float]) -> list[tuple[Event, Event]]:
    """Pairs of bodies of one key that ran at the same time. A body without an end ended when its process was killed."""
    pairs = []
    runs: dict[str, list[tuple[Event, float]]] = {}
    for event in events:
        if event.state == "begin":
            ends = (other.at for other in events if other[:2] == event[:2] and other.pid == event.pid)
            end = next((at for at in ends if at > event.at), killed.get(event.pid, math.inf))
            runs.setdefault(event.key, []).append((event, end))
    for runs_of_key in runs.values():
        runs_of_key.sort(key=lambda run: run[0].at)
        pairs += [(first, second) for (first, end), (second, _) in pairwise(runs_of_key) if second.at < end]
    return pairs
