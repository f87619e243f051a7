"""Guards for a resource behind HTTP: the client sends its fence in a header, and middleware rejects stale ones.

    requests.put(url, data, headers=fence_header(lease))                     # the client

    app = FenceMiddleware(app, resource=by_path, store=MemoryFences())       # the server, WSGI
    app = AsyncFenceMiddleware(app, resource=by_path, store=…)               # the server, ASGI

`resource` is a function of the application: it returns the name of the resource that a request writes to, or None for
requests that need no fence. The guard itself answers in plain text:

    400 Bad Request              the header is not a fence, or the name of the resource is invalid
    412 Precondition Failed      the resource has seen a newer fence: the request did not reach the application
    428 Precondition Required    the resource is guarded and the header is missing

A fence is stored before the application receives the request, so authenticate first: put the guard behind the
middleware that authenticates, or let `resource` return None for a request that the application will reject. Otherwise
any client can send a fence so large that all others are rejected. The stores in memory discard the fence of a request
that is answered with 401 or 403.

While the application handles a request, other requests for the same resource wait, so that a slow old request cannot
write after a fast new one. The application must not call itself for the same resource.

A store keeps the fences. In memory: for a server with one process, until it restarts. In SQL: for several processes; it
uses a transaction of its own, so a guard in the transaction of the write itself (fencing.sql) is stronger if there is
one, and with SQLite it needs another database file than the application. A request holds the resource as long as that
transaction is open: the time limits of the server for idle transactions and connections are disabled in it, but a
broken connection releases the resource, and the error is raised when the request ends.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from holdfast.errors import ConfigurationError, StaleFence
from holdfast.fencing.values import FENCE_MAX, check_fence, check_resource, refuse_stale

if TYPE_CHECKING:
    import asyncio

    from holdfast.fencing.sql import SqlGuard

HEADER = "Holdfast-Fence"
_WSGI_KEY = "HTTP_HOLDFAST_FENCE"
_ASGI_NAME = b"holdfast-fence"
_M = TypeVar("_M")
_CALLER_REFUSED = (401, 403)
_FENCE = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


class _Fenced(Protocol):
    @property
    def fence(self) -> int: ...


def fence_header(lease: _Fenced) -> dict[str, str]:
    """Return the header for requests under this lease (a Lease or an AsyncLease).

    >>> import holdfast
    >>> with holdfast.Client("memory://").lock("stock") as lease:
    ...     fence_header(lease) == {"Holdfast-Fence": str(lease.fence)}
    True
    """
    return {HEADER: str(check_fence(lease.fence))}


# ── stores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class FenceStore(Protocol):
    """Stores the greatest fence of each resource."""

    def holding(self, resource: str, fence: int) -> contextlib.AbstractContextManager[None]:
        """Exclude other requests for this resource during the body. The fence is stored before it begins.

        Raises:
            StaleFence: a greater fence is stored; the body is not run.
        """


class AsyncFenceStore(Protocol):
    """The same for asyncio."""

    def holding(self, resource: str, fence: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Exclude other requests for this resource during the body. The fence is stored before it begins.

        Raises:
            StaleFence: a greater fence is stored; the body is not run.
        """


class CallerRefused(Exception):
    """Raised in the body of `holding` after an answer of 401 or 403: a store may discard the fence of the request."""


class MemoryFences:
    """For the threads of one process. It keeps a fence and a mutex per resource, without a limit."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._states: dict[str, _ResourceState[threading.Lock]] = {}

    @contextlib.contextmanager
    def holding(self, resource: str, fence: int) -> Iterator[None]:
        with self._mutex:
            state = self._states.setdefault(resource, _ResourceState(threading.Lock()))
        with state.mutex, state.storing(resource, fence):
            yield


class AsyncMemoryFences:
    """For the tasks of one event loop. It keeps a fence and a mutex per resource, without a limit."""

    def __init__(self) -> None:
        self._states: dict[str, _ResourceState[asyncio.Lock]] = {}

    @contextlib.asynccontextmanager
    async def holding(self, resource: str, fence: int) -> AsyncIterator[None]:
        import asyncio

        state = self._states.setdefault(resource, _ResourceState(asyncio.Lock()))
        async with state.mutex:
            with state.storing(resource, fence):
                yield


class SqlFences:
    """Uses the table of a SQL guard. `connect` returns a connection without autocommit; it is closed after use."""

    def __init__(self, guard: SqlGuard, connect: Callable[[], Any]) -> None:
        self._guard = guard
        self._connect = connect

    @contextlib.contextmanager
    def holding(self, resource: str, fence: int) -> Iterator[None]:
        with contextlib.closing(self._connect()) as connection:
            # The first check commits the fence, so that it is kept if the application fails. The second check locks the
            # row until the transaction ends.
            self._guard.check(connection.cursor(), resource, fence)
            connection.commit()
            cursor = connection.cursor()
            if self._guard.keep_open:
                cursor.execute(self._guard.keep_open)
            self._guard.check(cursor, resource, fence)
            yield
            connection.rollback()


class AsyncSqlFences:
    """The same for connections whose methods are awaited, such as psycopg's AsyncConnection."""

    def __init__(self, guard: SqlGuard, connect: Callable[[], Awaitable[Any]]) -> None:
        self._guard = guard
        self._connect = connect

    @contextlib.asynccontextmanager
    async def holding(self, resource: str, fence: int) -> AsyncIterator[None]:
        connection = await self._connect()
        try:
            await self._guard.check_async(connection.cursor(), resource, fence)
            await connection.commit()
            cursor = connection.cursor()
            if self._guard.keep_open:
                await cursor.execute(self._guard.keep_open)
            await self._guard.check_async(cursor, resource, fence)
            yield
            await connection.rollback()
        finally:
            await connection.close()


class _ResourceState(Generic[_M]):
    """The newest fence and the mutex of one resource."""

    def __init__(self, mutex: _M) -> None:
        self.mutex = mutex
        self._newest = 0

    @contextlib.contextmanager
    def storing(self, resource: str, fence: int) -> Iterator[None]:
        before = self._newest
        refuse_stale(resource, fence, before)
        self._newest = fence
        try:
            yield
        except CallerRefused:
            self._newest = before
            raise


# ── middleware ───────────────────────────────────────────────────────────────────────────────────────────────────────

Environ = dict[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class FenceMiddleware:
    """For a WSGI application."""

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        *,
        resource: Callable[[Environ], str | None],
        store: FenceStore,
    ) -> None:
        self._app = app
        self._resource = resource
        self._store = store

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        resource = self._resource(environ)
        if resource is None:
            return self._app(environ, start_response)
        with contextlib.ExitStack() as stack:
            try:
                fence = _parse(resource, environ.get(_WSGI_KEY))
                stack.enter_context(self._store.holding(resource, fence))
            except _Refusal as refusal:
                return _refuse_wsgi(refusal, start_response)
            except StaleFence as error:
                return _refuse_wsgi(_Refusal("412 Precondition Failed", str(error)), start_response)
            # Of the application. The last one counts, because the application may replace the status after an error.
            statuses: list[str] = []

            def record_status(status: str, *arguments: Any) -> Any:
                statuses.append(status)
                return start_response(status, *arguments)

            body = self._app(environ, record_status)
            # An application may work while its body is read, so the resource is released when the server closes the
            # body.
            return _Body(body, stack.pop_all(), statuses)
        raise AssertionError  # the store suppresses an exception of its body


class AsyncFenceMiddleware:
    """For an ASGI application. Connections other than HTTP pass."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        resource: Callable[[Scope], str | None],
        store: AsyncFenceStore,
    ) -> None:
        self._app = app
        self._resource = resource
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        resource = self._resource(scope) if scope["type"] == "http" else None
        if resource is None:
            await self._app(scope, receive, send)
            return
        statuses: list[int] = []

        async def record_status(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        with contextlib.suppress(CallerRefused):
            async with contextlib.AsyncExitStack() as stack:
                try:
                    fence = _parse(resource, _asgi_header(scope))
                    await stack.enter_async_context(self._store.holding(resource, fence))
                except _Refusal as refusal:
                    await _refuse_asgi(refusal, send)
                except StaleFence as error:
                    await _refuse_asgi(_Refusal("412 Precondition Failed", str(error)), send)
                else:
                    await self._app(scope, receive, record_status)
                    if statuses and statuses[-1] in _CALLER_REFUSED:
                        raise CallerRefused


class _Refusal(Exception):
    def __init__(self, status: str, text: str) -> None:
        super().__init__(status)
        self.status = status
        self.body = f"{text}\n".encode()


class _Body:
    """The body of the application. Closing it releases the resource."""

    def __init__(self, body: Iterable[bytes], holding: contextlib.ExitStack, statuses: list[str]) -> None:
        self._body = body
        self._holding = holding  # releases the resource
        self._statuses = statuses

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        with contextlib.suppress(CallerRefused), self._holding:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
            if self._statuses and int(self._statuses[-1][:3]) in _CALLER_REFUSED:
                raise CallerRefused


def _parse(resource: str, header: str | None) -> int:
    try:
        check_resource(resource)
    except ConfigurationError as error:
        raise _Refusal("400 Bad Request", str(error)) from None
    if header is None:
        raise _Refusal(
            "428 Precondition Required", f"{resource!r} is guarded: send the fence of your lease as {HEADER}"
        )
    if not _FENCE.fullmatch(header) or int(header) > FENCE_MAX:
        raise _Refusal("400 Bad Request", f"{HEADER} must be the fence of a lease, a whole number from 1 on")
    return int(header)


def _asgi_header(scope: Mapping[str, Any]) -> str | None:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == _ASGI_NAME]
    return ",".join(values) if values else None  # two headers do not form a valid fence


def _refuse_wsgi(refusal: _Refusal, start_response: Callable[..., Any]) -> list[bytes]:
    start_response(refusal.status, _plain(refusal))
    return [refusal.body]


async def _refuse_asgi(refusal: _Refusal, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in _plain(refusal)]
    await send({"type": "http.response.start", "status": int(refusal.status[:3]), "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})


def _plain(refusal: _Refusal) -> list[tuple[str, str]]:
    return [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(refusal.body)))]
