"""A process that executes commands on locks: one JSON line in, one out (processes.py).

    python worker.py URL [fd fd]      the two descriptors are the channel of a child that the command `fork` creates

It reports what it observed, with times of the clock that all processes share. The test checks the reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import holdfast

PR_SET_PDEATHSIG = 1
LIFE_MAX = 150  # seconds; maximum life of a forked child, in case no process ends it

Answer = dict[str, Any]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Worker:
    """The public methods are the commands."""

    def __init__(self, url: str, child_channel: tuple[int, int] | None) -> None:
        self._client = holdfast.Client(url)
        self._leases: dict[str, holdfast.Lease] = {}
        self._child_channel = child_channel
        self._commands = os.fdopen(os.dup(0), "rb")
        self._answers = os.dup(1)
        os.dup2(2, 1)  # accidental output must not be read as an answer
        self._loss_reported = threading.Event()
        self._background: threading.Thread | None = None
        self._outcome = "none yet"
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

    def fork_beside_threads(self, times: int, backoff: float) -> Answer:
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


def _readable(fd: int, until: float) -> bool:
    return bool(select.select([fd], [], [], max(0.0, until - now()))[0])


def main(worker: type[Worker] = Worker) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    child_channel = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else None
    worker(sys.argv[1], child_channel).run()


if __name__ == "__main__":
    main()
