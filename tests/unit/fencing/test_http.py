"""Hazard: a late request reaches the application, or an old slow request writes after a new fast one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

import holdfast
from holdfast.fencing.http import (
    AsyncFenceMiddleware,
    AsyncMemoryFences,
    FenceMiddleware,
    FenceStore,
    MemoryFences,
    SqlFences,
    fence_header,
)
from holdfast.fencing.sql import SQLiteGuard

Answer = tuple[int, str]


@pytest.fixture(params=["memory", "sql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FenceStore:
    if request.param == "memory":
        return MemoryFences()

    def connect() -> sqlite3.Connection:
        # One thread may end the transaction of another, because a server may close a body in any thread.
        return sqlite3.connect(tmp_path / "fences.db", timeout=30, check_same_thread=False)

    with contextlib.closing(connect()) as connection:
        SQLiteGuard().create(connection.cursor())
    return SqlFences(SQLiteGuard(), connect)


def by_path(environ: dict[str, Any]) -> str | None:
    return None if environ["REQUEST_METHOD"] == "GET" else environ["PATH_INFO"]


def call(app: Any, fence: str | None, *, method: str = "PUT") -> Answer:
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": "/stock", "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    if fence is not None:
        environ["HTTP_HOLDFAST_FENCE"] = fence
    statuses: list[str] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
        statuses.append(status)
        return lambda _: None

    body = validator(app)(environ, start_response)
    try:
        text = b"".join(body).decode()
    finally:
        body.close()  # type: ignore[attr-defined]
    return int(statuses[0][:3]), text


class Application:
    """An application that records the fences that reach it, as late as possible: while its body is read."""

    def __init__(self) -> None:
        self.fences: list[int] = []
        self.before: Callable[[int], object] = lambda _: None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return self._body(int(environ.get("HTTP_HOLDFAST_FENCE", 0)))

    def _body(self, fence: int) -> Iterator[bytes]:
        self.before(fence)
        self.fences.append(fence)
        yield b"written"


def test_stale_fences_do_not_reach_the_application(store: FenceStore) -> None:
    application = Application()
    app = FenceMiddleware(application, resource=by_path, store=store)

    answers = [call(app, fence) for fence in ("7", "7", "6", "9", "8")]

    assert [status for status, _ in answers] == [200, 200, 412, 200, 412]
    assert "has seen fence 7" in answers[2][1]
    assert application.fences == [7, 7, 9]


@pytest.mark.parametrize(
    ("fence", "status"),
    [(None, 428), ("", 400), ("0", 400), ("-1", 400), ("7,8", 400), ("\u0667", 400), ("9" * 19, 400)],
)
def test_a_request_without_a_valid_fence_is_refused(store: FenceStore, fence: str | None, status: int) -> None:
    application = Application()
    app = FenceMiddleware(application, resource=by_path, store=store)

    answered, text = call(app, fence)

    assert (answered, application.fences) == (status, [])
    assert "Holdfast-Fence" in text
    assert call(app, None, method="GET")[0] == 200


def test_a_newer_request_waits_until_the_older_one_has_ended(store: FenceStore) -> None:
    application, inside, may_continue = Application(), threading.Event(), threading.Event()
    app = FenceMiddleware(application, resource=by_path, store=store)

    def pause(fence: int) -> None:
        if fence == 7:
            inside.set()
            assert may_continue.wait(30)

    application.before = pause
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(call, app, "7")
        assert inside.wait(30)
        new = pool.submit(call, app, "8")
        with pytest.raises(TimeoutError):
            new.result(0.3)
        may_continue.set()
        assert (old.result(30)[0], new.result(30)[0]) == (200, 200)

    assert application.fences == [7, 8]


def test_a_failed_request_keeps_its_fence_and_releases_the_resource(store: FenceStore) -> None:
    application = Application()
    app = FenceMiddleware(application, resource=by_path, store=store)
    application.before = lambda _: 1 / 0

    with pytest.raises(ZeroDivisionError):
        call(app, "7")
    application.before = lambda _: None

    assert [call(app, fence)[0] for fence in ("6", "7")] == [412, 200]


def test_the_resource_never_goes_back_under_many_requests_with_random_fences(store: FenceStore) -> None:
    application = Application()
    app = FenceMiddleware(application, resource=by_path, store=store)

    def run(seed: int) -> list[int]:
        rng = random.Random(seed)  # noqa: S311  (repeatable, not secret)
        return [call(app, str(1 + step * 10 + rng.randrange(100)))[0] for step in range(25)]

    with ThreadPoolExecutor(4) as pool:
        statuses = [status for run_statuses in pool.map(run, range(4)) for status in run_statuses]

    assert set(statuses) == {200, 412}
    assert application.fences == sorted(application.fences)
    assert len(application.fences) == statuses.count(200)


# ── ASGI ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def call_asgi(app: Any, *fences: str, kind: str = "http") -> Answer:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"holdfast-fence", fence.encode()) for fence in fences]
    await app({"type": kind, "method": "PUT", "path": "/stock", "headers": headers}, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


class AsgiApplication:
    def __init__(self) -> None:
        self.fences: list[int] = []
        self.before: Callable[[int], Awaitable[object]] = lambda _: asyncio.sleep(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fence = int(scope["headers"][0][1]) if scope["headers"] else 0
        await self.before(fence)
        self.fences.append(fence)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"written"})


async def test_asgi_rejects_the_same_requests_as_wsgi() -> None:
    application = AsgiApplication()
    app = AsyncFenceMiddleware(application, resource=lambda scope: scope["path"], store=AsyncMemoryFences())

    answers = [await call_asgi(app, *fences) for fences in (["7"], ["7"], ["6"], ["9"], [], ["x"], ["9", "10"])]

    assert [status for status, _ in answers] == [200, 200, 412, 200, 428, 400, 400]
    assert "has seen fence 7" in answers[2][1]
    assert application.fences == [7, 7, 9]
    assert (await call_asgi(app, kind="websocket"))[0] == 200


async def test_asgi_newer_request_waits_until_the_older_one_has_ended() -> None:
    application, inside, may_continue = AsgiApplication(), asyncio.Event(), asyncio.Event()
    app = AsyncFenceMiddleware(application, resource=lambda scope: scope["path"], store=AsyncMemoryFences())

    async def pause(fence: int) -> None:
        if fence == 7:
            inside.set()
            await may_continue.wait()

    application.before = pause
    old = asyncio.create_task(call_asgi(app, "7"))
    await inside.wait()
    new = asyncio.create_task(call_asgi(app, "8"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not new.done()
    may_continue.set()

    assert [(await old)[0], (await new)[0]] == [200, 200]
    assert application.fences == [7, 8]


def test_fence_header_has_the_fence_of_the_lease() -> None:
    with holdfast.Client("memory://") as client, client.lock("stock") as lease:
        assert fence_header(lease) == {"Holdfast-Fence": str(lease.fence)}


@pytest.mark.parametrize("status", [401, 403])
def test_a_fence_is_discarded_when_the_application_rejects_the_caller(status: int) -> None:
    statuses = iter([f"{status} No", "200 OK"])

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(next(statuses), [("Content-Type", "text/plain")])
        return [b""]

    app = FenceMiddleware(application, resource=by_path, store=MemoryFences())

    assert call(app, "9223372036854775807")[0] == status
    assert call(app, "7")[0] == 200
    assert call(app, "6")[0] == 412


async def test_a_fence_is_discarded_when_the_asgi_application_rejects_the_caller() -> None:
    statuses = iter([401, 200])

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": next(statuses), "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = AsyncFenceMiddleware(application, resource=lambda scope: scope["path"], store=AsyncMemoryFences())

    assert [await acall(app, fence) for fence in ("9223372036854775807", "7", "6")] == [401, 200, 412]


async def acall(app: Any, fence: str) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any: ...

    headers = [(b"holdfast-fence", fence.encode())]
    await app({"type": "http", "path": "/stock", "headers": headers}, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("path", ["", "/" + "a" * 600, "/\udc80"])
def test_a_request_with_an_invalid_resource_gets_400(store: FenceStore, path: str) -> None:
    application = Application()
    app = FenceMiddleware(application, resource=lambda _: path, store=store)

    assert call(app, "7")[0] == 400
    assert application.fences == []
