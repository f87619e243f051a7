"""The worker of the conformance suite with more commands: many steps, measurements, and the file of sqlite.

python worker.py URL [fd fd]      as holdfast_lab/conformance/worker.py
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import resource
import sqlite3
import tempfile
import threading
import time
import traceback

import holdfast
from holdfast_lab.conformance.worker import PR_SET_PDEATHSIG, Answer, main, now
from holdfast_lab.conformance.worker import Worker as ConformanceWorker

__all__ = ["PR_SET_PDEATHSIG", "Answer", "Turn", "Worker", "now"]

Turn = tuple[float, float, float, int]  # asked, acquired, before release; fence


class Worker(ConformanceWorker):
    """The public methods are the commands."""

    def __init__(self, url: str, child_channel: tuple[int, int] | None) -> None:
        super().__init__(url, child_channel)
        self._path = url.removeprefix("sqlite://")
        self._raw: sqlite3.Connection | None = None

    # ── many steps ───────────────────────────────────────────────────────────────────────────────────────────────

    def turns(self, lock: str, *, start: float, times: int = 0, seconds: float = 0.0, hold: float = 0.0) -> Answer:
        """Acquire and release one lock, `times` times or for `seconds`."""
        return {"turns": _take_turns(self._client.lock(lock), start=start, times=times, seconds=seconds, hold=hold)}

    def stubborn_turns(self, lock: str, *, start: float, seconds: float, hold: float) -> Answer:
        """As `turns`, but continue after each HoldfastError, and return the number of errors of each kind."""
        turns: list[Turn] = []
        problems: dict[str, int] = {}
        time.sleep(max(0.0, start - now()))
        while now() < start + seconds:
            try:
                turns.append(_turn(self._client.lock(lock, timeout=1.0), hold))
            except holdfast.HoldfastError as error:
                problem = type(error).__name__
                if isinstance(error, holdfast.BackendError):
                    problem += f": {error.problem}"
                problems[problem] = problems.get(problem, 0) + 1
        return {"turns": turns, "problems": problems}

    def shared_turns(self, *, writes: bool, limit: int, start: float, seconds: float, hold: float) -> Answer:
        """Acquire a reader/writer lock and a permit of a semaphore in turn."""
        rwlock = self._client.rwlock("book")
        book = rwlock.write() if writes else rwlock.read()
        permit = self._client.semaphore("permits", limit)
        time.sleep(max(0.0, start - now()))
        book_turns: list[Turn] = []
        permit_turns: list[Turn] = []
        while now() < start + seconds:
            book_turns.append(_turn(book, hold))
            permit_turns.append(_turn(permit, hold))
        return {"book": book_turns, "permits": permit_turns}

    def thread_turns(self, lock: str, *, threads: int, start: float, times: int) -> Answer:
        """Several threads, one client, one Lock object."""
        shared = self._client.lock(lock)
        turns: list[list[Turn]] = []
        threads_started = [
            threading.Thread(target=lambda: turns.append(_take_turns(shared, start=start, times=times)))
            for _ in range(threads)
        ]
        for thread in threads_started:
            thread.start()
        for thread in threads_started:
            thread.join()
        return {"turns": turns}

    def hold_many(self, count: int, ttl: float) -> Answer:
        started = now()
        for number in range(count):
            self.acquire(f"many-{number}", ttl=ttl)
        return {"seconds": now() - started}

    def keep_many(self, seconds: float) -> Answer:
        """Sleep while the keeper renews."""
        before, started = _cpu(), now()
        time.sleep(seconds)
        share = (_cpu() - before) / (now() - started)
        lost = [name for name, lease in self._leases.items() if lease.lost]
        keepers = [thread.name for thread in threading.enumerate() if thread.name == "holdfast-keeper"]
        return {"lost": len(lost), "keepers": len(keepers), "cpu": share}

    def ping_pong(self, times: int) -> Answer:
        """The median time of a message over a pipe between two processes, one way: the minimum cost of a hand-over."""
        forth, back = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            while os.read(forth[0], 1) == b".":
                os.write(back[1], b".")
            os._exit(0)
        trips = []
        for _ in range(times):
            sent = now()
            os.write(forth[1], b".")
            os.read(back[0], 1)
            trips.append(now() - sent)
        os.write(forth[1], b"!")
        os.waitpid(child, 0)
        for fd in (*forth, *back):
            os.close(fd)
        return {"one_way": sorted(trips)[times // 2] / 2}

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_raw(self) -> None:
        """Open the file without holdfast and begin a transaction."""
        self._raw = sqlite3.connect(self._path, isolation_level=None)
        self._raw.execute("BEGIN IMMEDIATE")

    def commit_raw(self) -> None:
        assert self._raw is not None
        self._raw.execute("COMMIT")
        self._raw.close()

    def fill_disk(self, path: str) -> None:
        with contextlib.suppress(OSError), builtins.open(path, "wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass

    def free_disk(self, path: str) -> None:
        os.unlink(path)

    def become_nobody(self) -> None:
        """Drop root privileges, because root ignores file modes. All modules must be imported before."""
        with tempfile.TemporaryDirectory() as folder, holdfast.Client(f"sqlite://{folder}/warm-up.db") as client:
            client.lock("warm-up").acquire()
        _ = (logging, traceback)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    def open(self, url: str) -> None:
        """Replace the client by another one."""
        self._client.close()
        self._client = holdfast.Client(url)


def _take_turns(
    lock: holdfast.Lock, *, start: float, times: int = 0, seconds: float = 0.0, hold: float = 0.0
) -> list[Turn]:
    time.sleep(max(0.0, start - now()))
    turns: list[Turn] = []
    while len(turns) < times or now() < start + seconds:
        turns.append(_turn(lock, hold))
    return turns


def _turn(lock: holdfast.Lock, hold: float) -> Turn:
    asked = now()
    with lock as lease:
        acquired = now()
        if hold:
            time.sleep(hold)
        return asked, acquired, now(), lease.fence


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(Worker)
