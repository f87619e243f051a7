"""The parent's side of the hub: the resource that the locks protect, and the proxies, on one thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h

from .proxies import PATIENCE, Proxies


class Resource:
    """A register for each lock. It refuses a fence that is smaller than an earlier one, and accepts calls without one.

    All accesses are on one thread, so its history has them in the order in which they happened.
    """

    def __init__(self) -> None:
        self.history: list[h.Event] = []
        self._values: defaultdict[str, int] = defaultdict(int)
        self._newest: defaultdict[str, int] = defaultdict(int)
        # The last read of each client and of each lock. A worker reads right after each grant.
        self.granted: dict[str, float] = {}

    def read(self, client: str, lock: str, ticket: int, fence: int | None) -> dict[str, Any]:
        accepted, value, at = self._accepts(lock, fence), self._values[lock], now()
        self.granted[client] = self.granted[lock] = at
        self.history.append(
            h.Read(at, client, ticket, lock, fence or 0, value, accepted=accepted, fenced=fence is not None)
        )
        return {"accepted": accepted, "value": value}

    def write(self, client: str, lock: str, ticket: int, fence: int | None, before: int) -> dict[str, Any]:
        accepted = self._accepts(lock, fence)
        if accepted:
            self._values[lock] = ticket
        fenced = fence is not None
        self.history.append(
            h.Wrote(now(), client, ticket, lock, fence or 0, ticket, accepted=accepted, before=before, fenced=fenced)
        )
        return {"accepted": accepted}

    def _accepts(self, lock: str, fence: int | None) -> bool:
        if fence is None:
            return True
        is_accepted = fence >= self._newest[lock]
        self._newest[lock] = max(fence, self._newest[lock])
        return is_accepted


class HubServer:
    """Answers the requests of workers while the `with` block runs."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "hub")
        self.resource = Resource()
        self._loop = asyncio.new_event_loop()
        self.proxies = Proxies(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-verify-hub", daemon=True)
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.proxies.close()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._answer, self.path)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        # The other tasks, which serve the proxies, end with their connections. They are not cancelled, because a task
        # of asyncio that has just accepted a connection must not be cancelled.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled at the end of the run
                while line := await reader.readline():
                    answer = self._answer_to(json.loads(line))
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        finally:
            writer.close()

    def _answer_to(self, request: dict[str, Any]) -> dict[str, Any]:
        client = request["client"]
        match request["do"]:
            case "proxy":
                return {"port": self.proxies.port(client, request["host"], request["port"])}
            case "read":
                return self.resource.read(client, request["lock"], request["ticket"], request["fence"])
            case _:
                before = request["before"]
                return self.resource.write(client, request["lock"], request["ticket"], request["fence"], before)
