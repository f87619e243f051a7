"""A candidate or an observer of an election, as a separate process (tests/support/processes.py).

    python process.py URL candidate|observer threads|asyncio LOG

It starts at once and writes each event to its log immediately, so that no event is lost when it is killed:

    beat TERM TIME        a candidate led at TIME: a check after TIME found that its lease was held
    lost TERM TIME        the loss of its term was reported, or its task was cancelled
    seen TERM PID TIME    an observer received this leader; 0 0: no leader
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import holdfast

PR_SET_PDEATHSIG = 1
NAME = "leader"
TTL = 1.0  # seconds
BEAT_INTERVAL = 0.005  # seconds between two beats of a leader
POLL_INTERVAL = 0.02  # seconds between two polls of an observer


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def write_leader(self, leader: holdfast.Leader | None) -> None:
        self.write("seen", *((leader.term, leader.pid) if leader else (0, 0)), now())


def lead(url: str, log: Log) -> tuple[threading.Thread, Callable[[], object]]:
    client = holdfast.Client(url)
    election = client.election(NAME, ttl=TTL)

    def work(lease: holdfast.Lease) -> None:
        while not election.stopped:
            at = now()
            if lease.held:
                log.write("beat", lease.fence, at)
            if lease.wait_lost(BEAT_INTERVAL):
                log.write("lost", lease.fence, now())
                return

    def run() -> None:
        with client:
            election.run(work)

    return threading.Thread(target=run), election.stop


def observe(url: str, log: Log) -> tuple[threading.Thread, Callable[[], object]]:
    client = holdfast.Client(url)

    def run() -> None:
        for leader in client.election(NAME).observe(every=POLL_INTERVAL):
            log.write_leader(leader)

    return threading.Thread(target=run), client.close


def lead_in_asyncio(url: str, log: Log) -> tuple[threading.Thread, Callable[[], object]]:
    ready = threading.Event()
    ends: list[Callable[[], object]] = []

    async def main() -> None:
        async with holdfast.AsyncClient(url) as client:
            election = client.election(NAME, ttl=TTL)
            loop = asyncio.get_running_loop()
            ends.append(lambda: loop.call_soon_threadsafe(election.stop))
            ready.set()

            async def work(lease: holdfast.AsyncLease) -> None:
                try:
                    while True:
                        at = now()
                        if lease.held:
                            log.write("beat", lease.fence, at)
                        await asyncio.sleep(BEAT_INTERVAL)
                except asyncio.CancelledError:
                    if lease.lost:
                        log.write("lost", lease.fence, now())
                    raise

            await election.run(work)

    return threading.Thread(target=lambda: asyncio.run(main())), lambda: ready.wait() and ends[0]()


def observe_in_asyncio(url: str, log: Log) -> tuple[threading.Thread, Callable[[], object]]:
    ready = threading.Event()
    ends: list[Callable[[], object]] = []

    async def main() -> None:
        async with holdfast.AsyncClient(url) as client:
            loop = asyncio.get_running_loop()
            ends.append(lambda: asyncio.run_coroutine_threadsafe(client.close(), loop))
            ready.set()
            async for leader in client.election(NAME).observe(every=POLL_INTERVAL):
                log.write_leader(leader)

    return threading.Thread(target=lambda: asyncio.run(main())), lambda: ready.wait() and ends[0]()


ROLES = {
    ("candidate", "threads"): lead,
    ("candidate", "asyncio"): lead_in_asyncio,
    ("observer", "threads"): observe,
    ("observer", "asyncio"): observe_in_asyncio,
}


def answer(reply: dict[str, object]) -> None:
    os.write(1, json.dumps(reply).encode() + b"\n")


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    url, role, runtime, path = sys.argv[1:]
    thread, end = ROLES[role, runtime](url, Log(path))
    thread.start()
    answer({"ready": True})
    for line in sys.stdin:
        if json.loads(line)["do"] == "end":
            break
        end()
        thread.join()
        answer({})


if __name__ == "__main__":
    main()
