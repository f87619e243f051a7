"""Drives an ASGI application without a server: its lifespan, and requests in the event loop of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.processes import PATIENCE

Hook = Callable[[], Awaitable[object]]


class Response(NamedTuple):
    """An HTTP response, and the error that the application raised after it."""

    status: int
    headers: dict[str, str]
    body: bytes
    error: BaseException | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Application:
    """An application between the start and the end of its lifespan."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        self._task = asyncio.create_task(self._app(scope, self._received.get, self._sent.put))
        await self._exchange("lifespan.startup")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exchange("lifespan.shutdown")
        await self._task

    async def _exchange(self, event: str) -> None:
        self._received.put_nowait({"type": event})
        reply = await asyncio.wait_for(self._sent.get(), PATIENCE)
        assert reply["type"] == f"{event}.complete", reply

    async def request(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        at_start: Hook | None = None,
    ) -> Response:
        """Send a request. `at_start` is called when the application sends the first part of its response."""
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": dict(self.state),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.Event().wait()  # the client stays connected
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and at_start is not None:
                await at_start()
            sent.append(message)

        error = None
        try:
            await asyncio.wait_for(self._app(scope, receive, send), PATIENCE)
        except Exception as raised:
            error = raised
        start = sent[0]
        return Response(
            status=start["status"],
            headers={name.decode().lower(): value.decode() for name, value in start["headers"]},
            body=b"".join(message.get("body", b"") for message in sent[1:]),
            error=error,
        )
