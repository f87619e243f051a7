"""The ASGI app: pages, the stream of changes, the JSON API, and the requests that change something."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from holdfast import __version__, prometheus
from holdfast.aio.client import AsyncClient
from holdfast.core.events import logger
from holdfast.dashboard.feed import INTERVAL, Feed
from holdfast.dashboard.pages import PAGES, STATIC
from holdfast.dashboard.security import LOOPBACK_HOSTS, Access, Guard, read_body
from holdfast.dashboard.states import State
from holdfast.dashboard.store import store_document
from holdfast.errors import BackendError, ConfigurationError, HoldfastError
from holdfast.monitor.status import lock_as_dict
from holdfast.threads.client import Client

_STREAM_SECONDS = 20.0  # a stream ends by itself, because a server waits for open requests before it stops
_HEARTBEAT = 2.0  # seconds between two messages at most, so that a page detects a dead connection
_READ_TIMEOUT = 30.0  # seconds that a request waits for the first read of the store
_BODY_MAX = 16_384  # bytes
_FENCE = re.compile(r"[0-9]{1,30}")


def dashboard(
    client: Client | AsyncClient,
    *,
    token: str | None,
    allow_break: bool = False,
    hosts: Iterable[str] = LOOPBACK_HOSTS,
    registry: CollectorRegistry | None = None,
) -> Starlette:
    """An ASGI app that shows the locks of a store. Mount it into FastAPI or Starlette, or run it with uvicorn.

    Args:
        client: The store. For an AsyncClient, a Client of the same store is opened: requests run in threads.
        token: The secret that a browser has to present once, 16 characters or more. None: every request is accepted
            that reaches the app, so the program around it must authenticate users.
        allow_break: Leases can be broken and revoked. Without it the routes for that do not exist.
        hosts: The names under which browsers may use it (header Host), without ports; "*" accepts any.
        registry: The metrics that /metrics exports. Default: those of `client`.

    Raises:
        ConfigurationError: the token is too short.
    """
    access = Access(token, hosts)
    if registry is None:
        registry = CollectorRegistry()
        prometheus.instrument(client, registry)
    return _Dashboard(_for_threads(client), access, registry, allow_break=allow_break).app


class _Dashboard:
    def __init__(self, client: Client, access: Access, registry: CollectorRegistry, *, allow_break: bool) -> None:
        self._client = client
        self._registry = registry
        self._feed = Feed(client)
        self._access = access
        self._allow_break = allow_break
        routes: list[Route | Mount] = [
            *(Route(path, self._page(name)) for path, name in _PATHS.items()),
            Route("/api/session", self._session),
            Route("/api/stream", self._stream),
            Route("/api/locks", self._locks),
            Route("/api/store", self._store),
            Route("/metrics", self._metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        if allow_break:
            for verb, change, otherwise in (
                ("break", client.break_lock, "the lease had already ended"),
                ("revoke", client.request_revoke, "no holder has this fence"),
            ):
                endpoint = functools.partial(self._change, verb, change, otherwise)
                routes.append(Route(f"/api/{verb}", endpoint, methods=["POST"]))
        self.app = Starlette(routes=routes, middleware=[Middleware(Guard, access=access)], lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Called only if the app is not mounted into another one."""
        yield
        self._feed.stop()

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(_: Request) -> Response:
            return HTMLResponse(PAGES[name])

        return page

    async def _session(self, _: Request) -> Response:
        csrf_token = self._access.csrf_token if self._allow_break else None
        return JSONResponse({"store": self._client.url, "version": __version__, "csrf_token": csrf_token})

    async def _stream(self, request: Request) -> Response:
        lock = request.query_params.get("lock")
        view = "lock" if lock is not None else request.query_params.get("view", "table")
        if view not in ("lock", "table", "waits", "status"):
            return PlainTextResponse("There is no such view.\n", 404)
        return _EventStream(self._feed, view, lock, request.headers.get("last-event-id", ""))

    async def _locks(self, _: Request) -> Response:
        """The locks in use, as `holdfast ls --json` prints them."""
        state = await self._read()
        if state is None or state.error is not None:
            reason = "it was not read in time" if state is None else state.error
            return JSONResponse({"error": f"the store is not available: {reason}"}, 503)
        return JSONResponse([lock_as_dict(info) for info in state.infos])

    async def _store(self, _: Request) -> Response:
        state = await self._read()
        return JSONResponse(store_document(self._client, state, INTERVAL, self._feed.connections))

    async def _metrics(self, request: Request) -> Response:
        body, content_type = prometheus.render(self._registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def _read(self) -> State | None:
        """The newest state. The first request waits for the first read."""
        async with self._feed.connect():
            return await self._feed.newer(None, _READ_TIMEOUT)

    async def _change(
        self, verb: str, change: Callable[[str, int], bool], otherwise: str, request: Request
    ) -> Response:
        """Execute a request of an operator, and log it with its result: "done", or `otherwise`."""
        refusal = self._access.refusal_of_change(request)
        if refusal is not None:
            return _refused(403, refusal)
        try:
            name, fence = await _read_target(request)
        except ValueError as error:
            return _refused(400, str(error))
        sender = request.client.host if request.client else "an unknown address"
        try:
            done = await asyncio.to_thread(change, name, fence)
        except ConfigurationError as error:
            return _refused(400, str(error))
        except HoldfastError as error:
            logger().warning("dashboard: %s of lock %r, fence %s, from %s failed: %s", verb, name, fence, sender, error)
            return _refused(503 if isinstance(error, BackendError) else 409, str(error))
        logger().warning(
            "dashboard: %s of lock %r, fence %s, from %s: %s", verb, name, fence, sender, "done" if done else otherwise
        )
        return JSONResponse({"done": True}) if done else _refused(409, otherwise)


_PATHS = {"/": "locks", "/lock": "lock", "/waits": "waits", "/store": "store"}


class _EventStream(Response):
    """Server-sent events: a message for each state that differs for this view, and at least one every few seconds."""

    def __init__(self, feed: Feed, view: str, lock: str | None, last_id: str) -> None:
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._view = view
        self._lock = lock
        self._epoch, _, number = last_id.partition("-")
        self._version = int(number) if number.isdecimal() else None  # of the last message that the page received
        self._sent = ""  # the last text of a lock or of the graph

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        reader = asyncio.create_task(_until_disconnect(receive))
        writer = asyncio.create_task(self._write(send))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _STREAM_SECONDS
        state: State | None = None
        status: object = None
        sent_at = 0.0
        async with self._feed.connect(self._lock):
            # A browser connects again this many milliseconds after the end of a stream.
            await send({"type": "http.response.body", "body": b"retry: 200\n\n", "more_body": True})
            while loop.time() < end:
                state = await self._feed.newer(state, _HEARTBEAT)
                if state is None:
                    continue
                texts = self._changed_fields(state)
                if not texts and status == state.status and loop.time() < sent_at + _HEARTBEAT:
                    continue
                event = f"id: {state.epoch}-{state.version}\ndata: {state.message(texts)}\n\n"
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
                self._epoch, self._version = state.epoch, state.version
                status, sent_at = state.status, loop.time()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _changed_fields(self, state: State) -> dict[str, str]:
        """The fields of the message that this page does not know yet, as JSON texts."""
        if self._view == "table":
            return state.table(self._version if self._epoch == state.epoch else None)
        if self._view == "status":
            return {}
        text = state.waits if self._lock is None else state.watched.get(self._lock, "")
        if text == self._sent:
            return {}
        self._sent = text
        return {self._view: text}


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_target(request: Request) -> tuple[str, int]:
    """The name of the lock and the fence that the operator typed.

    Raises:
        ValueError: the body is not what the page sends.
    """
    body = await read_body(request, _BODY_MAX)
    if body is None:
        raise ValueError("the request is too long")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ValueError("the request must be JSON")
    try:
        fields: Any = json.loads(body)
        name, fence = fields["lock"], fields["fence"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("the request must be a JSON object with lock and fence") from None
    if not isinstance(name, str) or not isinstance(fence, str) or not _FENCE.fullmatch(fence.strip()):
        raise ValueError("lock must be a name, and fence the text of a whole number")
    return name, int(fence)


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def _for_threads(client: Client | AsyncClient) -> Client:
    if isinstance(client, Client):
        return client
    options: dict[str, Any] = client._options  # noqa: SLF001 - the same store with the same options
    return Client(client._url, **options)  # noqa: SLF001 - as above
