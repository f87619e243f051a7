"""A process that uses one version of holdfast. It answers each JSON line with one (tests/support/processes.py).

    python worker.py threads|asyncio URL

It runs with every release of tests/formats/releases.txt, so it uses only features of the first of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import holdfast

PR_SET_PDEATHSIG = 1
TTL = 20  # seconds

Answer = dict[str, Any]


async def outcome(value: Any) -> Any:
    """The result of a call of either API. A result of the asyncio API has to be awaited."""
    return await value if inspect.isawaitable(value) else value


class Worker:
    """The public methods are the commands."""

    def __init__(self, runtime: str, url: str) -> None:
        self._runtime = runtime
        self._client: Any = holdfast.Client(url) if runtime == "threads" else holdfast.AsyncClient(url)
        self._leases: dict[str, Any] = {}

    async def run(self, command: Answer) -> Answer:
        method: Any = getattr(self, command.pop("do"))
        try:
            return await method(**command) or {}
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)}

    async def where(self) -> Answer:
        return {"file": holdfast.__file__}

    async def acquire(self, name: str, kind: str = "lock", timeout: float | None = None) -> Answer:
        """`kind` is "lock", "read", "write", or "permit" of two."""
        locks = {
            "lock": lambda: self._client.lock(name, ttl=TTL),
            "read": lambda: self._client.rwlock(name, ttl=TTL).read(),
            "write": lambda: self._client.rwlock(name, ttl=TTL).write(),
            "permit": lambda: self._client.semaphore(name, limit=2, ttl=TTL),
        }
        lease = await outcome(locks[kind]().acquire(timeout=timeout))
        if lease is None:
            return {"fence": None}
        self._leases[name] = lease
        return {"fence": lease.fence}

    async def release(self, name: str) -> None:
        await outcome(self._leases.pop(name).release())

    async def renew(self, name: str) -> None:
        await outcome(self._leases[name].renew())
        self._leases[name].check()

    async def transfer(self, name: str) -> Answer:
        return {"text": await outcome(self._leases.pop(name).transfer(within=TTL))}

    async def adopt(self, text: str) -> Answer:
        lease = await outcome(self._client.adopt(text))
        self._leases[lease.name] = lease
        return {"fence": lease.fence}

    async def inspect(self, name: str) -> Answer:
        info = await outcome(self._client.inspect(name))
        return {"fences": [holder.fence for holder in info.holders], "pids": [holder.pid for holder in info.holders]}

    async def once(self, key: str) -> Answer:
        """The result is the id of the process that ran it."""
        result = await outcome(self._client.once(key, retention="1h", result=True).run(self._pid))
        return {"pid": result.value, "ran": result.ran}

    async def once_per(self, name: str) -> Answer:
        return {"pid": await outcome(self._client.once_per("1d", name=name)(self._pid)())}

    @property
    def _pid(self) -> Any:
        async def pid() -> int:
            return os.getpid()

        return os.getpid if self._runtime == "threads" else pid

    async def close(self) -> None:
        await outcome(self._client.close())


def complete(call: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine that never suspends."""
    try:
        call.send(None)
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer
    raise AssertionError("the API for threads has suspended")


def threads(worker: Worker) -> None:
    answer({"ready": True})
    while line := sys.stdin.readline():
        answer(complete(worker.run(json.loads(line))))


async def tasks(worker: Worker) -> None:
    answer({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):  # meanwhile the loop runs and renews leases
        answer(await worker.run(json.loads(line)))


def answer(reply: Answer) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    worker = Worker(*sys.argv[1:])
    if sys.argv[1] == "threads":
        threads(worker)
    else:
        asyncio.run(tasks(worker))
