"""The state of an election for the probes of Kubernetes and of load balancers: an ASGI app without dependencies.

app.mount("/health", holdfast.asgi.health(election))        # FastAPI or Starlette
uvicorn.run(holdfast.asgi.health(election), port=8081)      # alone
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from holdfast.core.elections import term_held

if TYPE_CHECKING:
    from holdfast.aio.election import AsyncElection
    from holdfast.threads.election import Election

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def health(election: Election | AsyncElection) -> App:
    """An ASGI app with two paths: /live, and /leader for this process.

    /live answers 200 while the event loop runs. /leader answers 200 while a thread or task of this process leads
    through this object, else 503. Both return JSON: `{"name": "scheduler", "leader": true, "fence": 12}`.

    The answers come from memory, without a request to the store. During an outage of the store, a leader answers 200
    until its lease has ended by its own clock, which is before the lock is granted to another client.
    """

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live_and_end(receive, send)
        elif scope["type"] == "http":
            await _answer(election, scope, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    return app


async def _live_and_end(receive: Receive, send: Send) -> None:
    """The start and the end of a server that runs this app alone."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _answer(election: Election | AsyncElection, scope: Message, send: Send) -> None:
    status, fields = _status(election, _path(scope), scope["method"])
    body = json.dumps(fields).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 405:  # noqa: PLR2004 - RFC 9110 requires this header
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _status(election: Election | AsyncElection, path: str, method: str) -> tuple[int, dict[str, Any]]:
    if path not in ("/live", "/leader"):
        return 404, {"error": "there are /live and /leader"}
    if method not in ("GET", "HEAD"):
        return 405, {"error": "use GET"}
    fence = term_held(election)
    status = 200 if path == "/live" or fence is not None else 503
    return status, {"name": election.name, "leader": fence is not None, "fence": fence}


def _path(scope: Message) -> str:
    """The path below the mount: servers and Starlette put the prefix into both `root_path` and `path`."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path
