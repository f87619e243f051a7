"""A process that executes commands on locks: one JSON line in, one out (tests/support/processes.py).

    python worker.py URL [fd fd]      the two descriptors are the channel of a child that the command `fork` creates

It reports what it observed, with times of the clock that all processes share. The test checks the reports.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import json
import logging
import multiprocessing
import os
import resource
import select
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import holdfast

PR_SET_PDEATHSIG = 1
LIFE_MAX = 150  # seconds; maximum life of a forked child, in case no process ends it

Answer = dict[str, Any]
Turn = tuple[float, float, float, int]  # asked, acquired, before release; fence


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Worker:
    """The public methods are the commands."""

    def __init__(self, url: str, child_channel: tuple[int, int] | None) -> None:
        self._client = holdfast.Client(url)
        self._path = url.removeprefix("sqlite://")
        self._leases: dict[str, holdfast.Lease] = {}
        self._child_channel = child_channel
        self._commands = os.fdopen(os.dup(0), "rb")
        self._answers = os.dup(1)
        os.dup2(2, 1)  # accidental output must not be read as an answer
        self._loss_reported = threading.Event()
        self._background: threading.Thread | None = None
        self._outcome = "none yet"
        self._raw: sqlite3.Connection | None = None
        self._ended = False

    def run(self) -> None:
        self._answer({"ready": True})
        while not self._ended and (line := self._commands.readline()):
            arguments = json.loads(line)
            command: Callable[..., Answer | None] = getattr(self, arguments.pop("do"))
            try:
                answer = command(**arguments) or {}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            self._answer({"at": now(), **answer})

    def _answer(self, answer: Answer) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    # ── one step at a time ───────────────────────────────────────────────────────────────────────────────────────

    def acquire(self, lock: str, *, timeout: float | None = None, **options: Any) -> Answer:
        lease = self._client.lock(lock, **options).acquire(timeout=timeout)
        acquired = now()
        if lease is None:
            return {"acquired": None}
        self._leases[lock] = lease
        return {"acquired": acquired, "fence": lease.fence}

    def release(self, lock: str) -> Answer:
        leaving = now()
        self._leases[lock].release()
        return {"leaving": leaving}

    def transfer(self, lock: str, within: float) -> Answer:
        return {"text": self._leases.pop(lock).transfer(within=within)}

    def adopt(self, text: str) -> Answer:
        lease = self._client.adopt(text)
        self._leases[lease.name] = lease
        return {"fence": lease.fence}

    def check(self, lock: str) -> Answer:
        self._leases[lock].check()
        return {"remaining": self._leases[lock].remaining}

    def renew(self, lock: str) -> None:
        self._leases[lock].renew()

    def state(self, lock: str) -> Answer:
        lease = self._leases[lock]
        return {"lost": lease.lost, "held": lease.held, "remaining": lease.remaining}

    def wait_lost(self, lock: str, timeout: float) -> Answer:
        return {"lost": self._leases[lock].wait_lost(timeout)}

    def acquire_and_watch(self, lock: str, ttl: float) -> None:
        """Acquire it, and record when its loss is reported."""
        lease = self._client.lock(lock, ttl=ttl, on_lost=lambda _: self._loss_reported.set()).acquire()
        assert lease is not None
        self._leases[lock] = lease

    def await_loss(self, lock: str, timeout: float) -> Answer:
        assert self._loss_reported.wait(timeout)
        return {"lost_at": now()}

    def acquire_in_background(self, lock: str) -> None:
        """Acquire it on another thread, without a timeout."""
        self._background = threading.Thread(target=self._acquire_and_note, args=(lock,), daemon=True)
        self._background.start()

    def _acquire_and_note(self, lock: str) -> None:
        try:
            self.acquire(lock)
            self._outcome = "acquired"
        except Exception as error:
            self._outcome = type(error).__name__

    def background_outcome(self, timeout: float) -> Answer:
        assert self._background is not None
        self._background.join(timeout)
        return {"outcome": self._outcome}

    def body(self, lock: str, ttl: float) -> None:
        """Stay in the body of a `with` until the next command."""
        with self._client.lock(lock, ttl=ttl) as lease:
            self._leases[lock] = lease
            self._answer({"inside": now(), "fence": lease.fence})
            self._commands.readline()

    def close(self) -> None:
        self._client.close()

    def end(self) -> None:
        self._ended = True

    # ── many steps ───────────────────────────────────────────────────────────────────────────────────────────────

    def turns(self, lock: str, *, start: float, times: int = 0, seconds: float = 0.0, hold: float = 0.0) -> Answer:
        """Acquire and release one lock, `times` times or for `seconds`."""
        return {"turns": _take_turns(self._client.lock(lock), start=start, times=times, seconds=seconds, hold=hold)}

    def stubborn_turns(self, lock: str, *, start: float, seconds: float, hold: float) -> Answer:
        """Continue after every HoldfastError; return how many there were of each."""
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

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def fork(self) -> Answer:
        """Fork. The parent answers here, and the child on its own channel."""
        assert self._child_channel is not None
        child = os.fork()
        if child:
            return {"pid": child}
        signal.alarm(LIFE_MAX)
        commands, answers = self._child_channel
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, self._commands.fileno())  # otherwise the child would keep the channel of the parent open
        os.dup2(null, self._answers)
        self._commands, self._answers = os.fdopen(commands, "rb"), answers
        return {"pid": os.getpid()}

    def fork_in_a_crowd(self, times: int, backoff: float) -> Answer:
        """Fork repeatedly while other threads acquire locks; each child acquires and releases a lock of its own."""
        sys.setswitchinterval(1e-5)  # so that forks happen at every point of the other threads
        over = threading.Event()
        threads_started = [threading.Thread(target=self._churn, args=(f"crowd-{number}", over)) for number in range(2)]
        for thread in threads_started:
            thread.start()
        outcomes: dict[str, int] = {}
        held = self._client.lock("parent").acquire()
        assert held is not None
        for _ in range(times):
            outcome = self._fork_once(held, backoff)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if outcome != "fine":
                break  # one failure is enough, and each takes long
        over.set()
        for thread in threads_started:
            thread.join()
        held.release()
        return {"outcomes": outcomes}

    def _churn(self, name: str, over: threading.Event) -> None:
        lock = self._client.lock(name)
        while not over.is_set():
            with lock:
                pass

    def _fork_once(self, held: holdfast.Lease, backoff: float) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(LIFE_MAX)
            faulthandler.dump_traceback_later(backoff / 2)  # prints where it hangs
            os.write(writing, self._in_child(held).encode())
            os._exit(0)
        os.close(writing)
        died = os.pidfd_open(child)
        end = now() + backoff
        hung = not _readable(died, end)
        if hung:
            signal.pidfd_send_signal(died, signal.SIGKILL)
        os.waitpid(child, 0)
        outcome = os.read(reading, 1000).decode()
        os.close(reading)
        os.close(died)
        return "hung" if hung else outcome

    def _in_child(self, held: holdfast.Lease) -> str:
        try:
            if not held.lost:
                return "owns its parent's lease"
            with contextlib.suppress(holdfast.LockLost):
                held.release()
            lease = self._client.lock("child").acquire(timeout=5)
            if lease is None:
                return "did not get its lock"
            lease.release()
            self._client.close()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "fine"

    def multiprocess(self, method: str, lock: str) -> Answer:
        """Pass the client to a child of multiprocessing, which acquires a lock with it and returns the fence."""
        multiprocessing.set_start_method(method)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=take_in_child, args=(self._client, lock, theirs), daemon=True)
        process.start()
        theirs.close()
        answer: Answer = ours.recv() if ours.poll(LIFE_MAX / 5) else {"error": "Hung", "message": "no answer"}
        holders = [holder.pid for holder in self._client.inspect(lock).holders]
        ours.send("done")
        process.join(LIFE_MAX / 5)
        return {"pid": process.pid, "holders": holders, "exitcode": process.exitcode, **answer}


def take_in_child(client: holdfast.Client, lock: str, parent: Connection) -> None:
    """Run in a child of multiprocessing: hold the lock until the parent has seen it."""
    try:
        with client.lock(lock, timeout=10) as lease:
            parent.send({"fence": lease.fence})
            parent.poll(LIFE_MAX / 5)
        client.close()
    except Exception as error:
        parent.send({"error": type(error).__name__, "message": str(error)})


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


def _readable(fd: int, until: float) -> bool:
    return bool(select.select([fd], [], [], max(0.0, until - now()))[0])


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    child_channel = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else None
    Worker(sys.argv[1], child_channel).run()


if __name__ == "__main__":
    main()
