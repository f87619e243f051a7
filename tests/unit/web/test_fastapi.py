"""Hazard: a handler without its lock, a success that is reported after a loss, a lock that outlives its response.

tests/integration/web/test_versions.py runs these tests with the oldest supported versions too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import anyio
import pytest
from fastapi import APIRouter, BackgroundTasks, Body, Depends, FastAPI, Header, Path, Request, WebSocket
from fastapi.responses import StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

import holdfast
import holdfast.starlette
from holdfast import AsyncLease, LockOptions
from holdfast.fastapi import lock
from tests.support.asgi import Application
from tests.support.server_process import free_ports

ORDER = lock("order:{number}")
MISSPELT = lock("order:{no}")
ITEM: Any = Path()
EXPIRES: LockOptions = {"ttl": 0.1, "renew": False}


class Shop:
    """An application, its client, and a client of another process."""

    def __init__(self) -> None:
        url = f"memory://{uuid.uuid4().hex}"
        self.app = FastAPI(lifespan=holdfast.starlette.lifespan(url))
        self.application = Application(self.app)
        self.other = holdfast.AsyncClient(url)
        self.request = self.application.request
        self.shipped: list[tuple[object, int]] = []

    async def aclose(self) -> None:
        await self.other.close()

    def serve(self, dependency: Any = ORDER, path: str = "/orders/{number}") -> None:
        """A handler that returns the names of the locks that are held while it runs."""

        async def ship(number: int, lease: Annotated[AsyncLease, dependency]) -> list[str]:
            return await self.held()

        # FastAPI cannot resolve a local variable in an annotation.
        ship.__annotations__["lease"] = Annotated[AsyncLease, dependency]
        self.app.get(path)(ship)

    async def held(self) -> list[str]:
        return [info.name for info in await self.other.locks() if info.holders]

    async def assert_free(self) -> None:
        assert await self.held() == []


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_the_handler_runs_under_the_lock_of_its_path(shop: Shop) -> None:
    shop.serve()

    async with shop.application:
        response = await shop.request("/orders/7")

    assert (response.status, response.json) == (200, ["order:7"])


async def test_a_busy_lock_answers_423_with_retry_after_and_the_handler_does_not_run(shop: Shop) -> None:
    shop.serve()

    async with shop.application, shop.other.lock("order:7"):
        busy = await shop.request("/orders/7")
        free = await shop.request("/orders/8")

    assert (busy.status, busy.headers["retry-after"], busy.error) == (423, "1", None)
    assert "order" not in busy.json["detail"]  # neither names nor holders are reported to clients
    assert free.status == 200


async def test_busy_and_retry_after_can_be_chosen(shop: Shop) -> None:
    shop.serve(lock("order:{number}", busy=409, retry_after="1500ms"))

    async with shop.application, shop.other.lock("order:7"):
        busy = await shop.request("/orders/7")

    assert (busy.status, busy.headers["retry-after"]) == (409, "2")


async def test_a_request_with_a_timeout_waits_for_the_lock(shop: Shop) -> None:
    shop.serve(lock("order:{number}", timeout=30))

    async with shop.application:
        async with shop.other.lock("order:7"):
            request = asyncio.create_task(shop.request("/orders/7"))
            while not (await shop.other.inspect("order:7")).waiters:
                await asyncio.sleep(0.001)
        response = await request

    assert response.status == 200


def as_parameter(shop: Shop) -> None:
    shop.serve()


def as_dependency_of_the_path(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int) -> list[str]:
        return await shop.held()


def as_dependency_of_a_router(shop: Shop) -> None:
    router = APIRouter(prefix="/orders", dependencies=[ORDER])

    @router.get("/{number}")
    async def ship(number: int) -> list[str]:
        return await shop.held()

    shop.app.include_router(router)


def as_dependency_of_an_included_router(shop: Shop) -> None:
    router = APIRouter()

    @router.get("/{number}")
    async def ship(number: int) -> list[str]:
        return await shop.held()

    shop.app.include_router(router, prefix="/orders", dependencies=[ORDER])


def as_dependency_of_a_plain_function(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    def ship(number: int) -> list[str]:
        return ["order:7"]


def behind_a_middleware(shop: Shop) -> None:
    async def pass_on(request: Request, call_next: Callable[[Request], Any]) -> Any:
        return await call_next(request)

    shop.app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    shop.serve()


FORMS = [
    as_parameter,
    as_dependency_of_the_path,
    as_dependency_of_a_router,
    as_dependency_of_an_included_router,
    as_dependency_of_a_plain_function,
    behind_a_middleware,
]


@pytest.mark.parametrize("form", FORMS)
async def test_the_lock_is_released_before_the_response_is_sent(shop: Shop, form: Callable[[Shop], None]) -> None:
    form(shop)

    async with shop.application:
        response = await shop.request("/orders/7", at_start=shop.assert_free)

    assert (response.status, response.json, response.error) == (200, ["order:7"], None)


async def test_a_request_that_is_cancelled_releases_the_lock(shop: Shop) -> None:
    holds = asyncio.Event()

    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int) -> None:
        holds.set()
        await asyncio.Event().wait()

    async with shop.application:
        request = asyncio.create_task(shop.request("/orders/7"))
        await holds.wait()
        held = await shop.held()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        while await shop.held():
            await asyncio.sleep(0.001)

    assert held == ["order:7"]


async def test_a_time_limit_of_anyio_around_the_request_releases_the_lock(shop: Shop) -> None:
    class TimeLimit:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await self._app(scope, receive, send)
                return
            with anyio.move_on_after(0.1):  # cancels every await within, until the end of this block
                await self._app(scope, receive, send)
            await send({"type": "http.response.start", "status": 504, "headers": []})

    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int) -> None:
        await asyncio.Event().wait()

    shop.app.add_middleware(TimeLimit)

    async with shop.application:
        response = await shop.request("/orders/7")
        while await shop.held():
            await asyncio.sleep(0.001)

    assert response.status == 504


async def test_a_test_of_the_user_can_replace_the_lock(shop: Shop) -> None:
    shop.serve()
    shop.app.dependency_overrides[ORDER.dependency] = lambda: None

    async with shop.application, shop.other.lock("order:7"):
        response = await shop.request("/orders/7")

    assert response.status == 200


def test_the_schema_has_only_the_parameters_of_the_handler(shop: Shop) -> None:
    shop.serve()

    [operation] = shop.app.openapi()["paths"]["/orders/{number}"].values()

    assert [parameter["name"] for parameter in operation["parameters"]] == ["number"]


async def test_an_error_of_the_handler_releases_the_lock(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int) -> None:
        raise LookupError(number)

    async with shop.application:
        response = await shop.request("/orders/7", at_start=shop.assert_free)

    assert response.status == 500
    assert isinstance(response.error, LookupError)


async def test_a_request_that_is_refused_after_the_lock_was_acquired_releases_it(shop: Shop) -> None:
    @shop.app.post("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int, pieces: Annotated[int, Body(embed=True)]) -> None:
        raise AssertionError

    async with shop.application:
        response = await shop.request("/orders/7", method="POST", body=b'{"pieces": "x"}', at_start=shop.assert_free)

    assert response.status == 422


async def test_different_texts_of_one_path_parameter_have_one_lock(shop: Shop) -> None:
    shop.serve()

    async with shop.application:
        names = [(await shop.request(f"/orders/{text}")).json for text in ("7", "07", "+7")]
        async with shop.other.lock("order:7"):
            busy = await shop.request("/orders/007")

    assert names == [["order:7"]] * 3
    assert busy.status == 423


async def test_the_types_of_path_parameters_may_have_metadata_defaults_and_formats(shop: Shop) -> None:
    @shop.app.get("/shops/{shop_id}/{item}/{raw}", dependencies=[lock("{shop_id:04}/{item.hex}/{raw}")])
    async def ship(shop_id: Annotated[int, Path(gt=0)], raw, item: uuid.UUID = ITEM) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return await shop.held()

    item = uuid.uuid4()
    async with shop.application:
        response = await shop.request(f"/shops/12/{str(item).upper()}/07")

    assert response.json == [f"0012/{item.hex}/07"]


@pytest.mark.parametrize("path", ["/orders/seven", "/orders/0"])
async def test_an_invalid_path_parameter_answers_422(shop: Shop, path: str) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: Annotated[int, Path(gt=0)]) -> None:
        raise AssertionError

    async with shop.application:
        response = await shop.request(path)

    assert response.status == 422
    assert response.json["detail"][0]["loc"] == ["path", "number"]


async def test_a_path_parameter_that_is_too_long_for_a_name_answers_422(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: str) -> None:
        raise AssertionError

    async with shop.application:
        response = await shop.request(f"/orders/{'x' * 600}")

    assert response.status == 422


async def test_metrics_and_events_have_the_name_with_its_fields_as_group(shop: Shop) -> None:
    shop.serve()
    events: list[holdfast.Event] = []

    async with shop.application:
        shop.application.state["holdfast"].subscribe(events.append)
        await shop.request("/orders/7")

    assert {(event.lock, event.group) for event in events} == {("order:7", "order:{number}")}


async def test_a_long_name_of_a_lock_is_accepted(shop: Shop) -> None:
    shop.serve(lock("x" * 200 + "{number}"))

    async with shop.application:
        response = await shop.request("/orders/7")

    assert response.json == ["x" * 200 + "7"]


async def test_a_field_that_the_handler_does_not_declare_is_refused_at_the_first_request(shop: Shop) -> None:
    shop.serve(MISSPELT)

    @shop.app.get("/queries", dependencies=[ORDER])
    async def by_query(number: int) -> None:
        raise AssertionError

    async with shop.application:
        no_parameter, no_path_parameter = await shop.request("/orders/7"), await shop.request("/queries?number=7")

    assert no_parameter.status == no_path_parameter.status == 500
    assert isinstance(no_parameter.error, holdfast.ConfigurationError)
    assert "the field 'no'" in str(no_parameter.error)
    assert "ship() has no such parameter" in str(no_parameter.error)
    assert "no such path parameter" in str(no_path_parameter.error)


async def test_name_of_computes_the_name_from_any_part_of_the_request(shop: Shop) -> None:
    def name_of(number: int, tenant: Annotated[str, Header()], sku: Annotated[str, Body(embed=True)]) -> str:
        return f"{tenant}:{number}:{sku}"

    @shop.app.post("/orders/{number}", dependencies=[lock(name_of=name_of)])
    async def ship(number: int) -> list[str]:
        return await shop.held()

    headers = {"Tenant": "acme", "Content-Type": "application/json"}
    async with shop.application:
        response = await shop.request("/orders/07", method="POST", body=b'{"sku": "x"}', headers=headers)
        invalid = await shop.request("/orders/07", method="POST", body=b"{}", headers=headers)

    assert response.json == ["acme:7:x"]
    assert invalid.status == 422


async def test_one_dependency_that_is_used_twice_is_acquired_once(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER])
    async def ship(number: int, lease: Annotated[AsyncLease, ORDER]) -> bool:
        return lease.held

    async with shop.application:
        response = await shop.request("/orders/7")

    assert response.json is True


async def test_a_store_that_does_not_answer_gives_503_and_the_handler_does_not_run(shop: Shop) -> None:
    async with holdfast.AsyncClient(f"redis://127.0.0.1:{free_ports(1)[0]}") as client:
        shop.serve(lock("order:{number}", client=client, retry_after="5s"))

        async with shop.application:
            response = await shop.request("/orders/7")

    assert (response.status, response.headers["retry-after"], response.error) == (503, "5", None)


async def test_errors_of_the_handler_itself_are_not_answered_as_busy_or_unavailable(shop: Shop) -> None:
    @shop.app.get("/busy/{number}", dependencies=[ORDER])
    async def busy(number: int) -> None:
        async with shop.other.lock("stock", timeout=0):
            pass

    @shop.app.get("/down/{number}", dependencies=[ORDER])
    async def down(number: int) -> None:
        raise holdfast.BackendUnavailable(backend="redis", problem="closed")

    async with shop.application, shop.other.lock("stock"):
        task = asyncio.create_task(shop.request("/busy/7"))  # the task of the test holds "stock"
        responses = [await task, await shop.request("/down/7")]

    assert [response.status for response in responses] == [500, 500]
    assert [type(response.error) for response in responses] == [holdfast.AcquireTimeout, holdfast.BackendUnavailable]


def awaits(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[lock("order:{number}", **EXPIRES)])
    async def ship(number: int) -> str:
        await asyncio.Event().wait()
        return "shipped"


def suppresses_the_cancellation(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[lock("order:{number}", **EXPIRES)])
    async def ship(number: int) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "shipped"


def blocks_the_event_loop(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[lock("order:{number}", **EXPIRES)])
    async def ship(number: int) -> str:
        time.sleep(0.2)  # noqa: ASYNC251 - longer than the ttl
        return "shipped"


def runs_in_a_thread(shop: Shop) -> None:
    expires: Any = lock("order:{number}", **EXPIRES)

    @shop.app.get("/orders/{number}")
    def ship(number: int, lease: AsyncLease = expires) -> str:
        while not lease.lost:
            time.sleep(0.001)
        return "shipped"


def is_not_cancelled_by_choice(shop: Shop) -> None:
    expires: Any = lock("order:{number}", on_lost="event", ttl=0.1, renew=False)

    @shop.app.get("/orders/{number}")
    async def ship(number: int, lease: AsyncLease = expires) -> str:
        await lease.wait_lost()
        return "shipped"


def awaits_behind_a_middleware(shop: Shop) -> None:
    behind_a_middleware(shop)
    shop.app.router.routes.clear()
    awaits(shop)


HANDLERS = [
    awaits,
    suppresses_the_cancellation,
    blocks_the_event_loop,
    runs_in_a_thread,
    is_not_cancelled_by_choice,
    awaits_behind_a_middleware,
]


@pytest.mark.parametrize("handler", HANDLERS)
async def test_a_lease_that_is_lost_during_the_request_never_gives_a_success(
    shop: Shop, handler: Callable[[Shop], None]
) -> None:
    handler(shop)

    async with shop.application:
        response = await shop.request("/orders/7")

    assert response.status == 500
    assert isinstance(response.error, holdfast.LockLost)
    assert b"shipped" not in response.body


async def test_an_exception_handler_can_answer_a_loss(shop: Shop) -> None:
    @shop.app.exception_handler(holdfast.LockLost)
    async def lost(request: Request, error: holdfast.LockLost) -> Any:
        return StreamingResponse(iter([error.lock]), 503)

    awaits(shop)

    async with shop.application:
        response = await shop.request("/orders/7")

    assert (response.status, response.body) == (503, b"order:7")


async def test_background_tasks_and_streamed_bodies_run_after_the_release(shop: Shop) -> None:
    held_locks: list[list[str]] = []

    async def record_held_locks() -> None:
        held_locks.append(await shop.held())

    async def body() -> AsyncIterator[str]:
        await record_held_locks()
        yield ""

    @shop.app.get("/background/{number}", dependencies=[ORDER])
    async def background(number: int, tasks: BackgroundTasks) -> None:
        await record_held_locks()
        tasks.add_task(record_held_locks)

    @shop.app.get("/streams/{number}", dependencies=[ORDER])
    async def stream(number: int) -> StreamingResponse:
        return StreamingResponse(body())

    async with shop.application:
        await shop.request("/background/7")
        await shop.request("/streams/7")

    assert held_locks == [["order:7"], [], []]


async def test_a_websocket_is_refused(shop: Shop) -> None:
    @shop.app.websocket("/orders/{number}", dependencies=[ORDER])
    async def ship(websocket: WebSocket, number: int) -> None:
        raise AssertionError

    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "headers": [],
        "path": "/orders/7",
        "raw_path": b"/orders/7",
        "root_path": "",
        "query_string": b"",
        "subprotocols": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    async with shop.application:
        with pytest.raises(holdfast.ConfigurationError, match="for HTTP requests"):
            await shop.app(scope | {"state": dict(shop.application.state)}, asyncio.Event().wait, asyncio.sleep)  # type: ignore[arg-type]


async def test_a_generator_is_refused_because_its_body_would_run_after_the_release(shop: Shop) -> None:
    @shop.app.get("/orders/{number}", dependencies=[ORDER], response_model=None)
    async def ship(number: int) -> AsyncIterator[str]:
        yield "shipped"

    async with shop.application:
        response = await shop.request("/orders/7")

    assert response.status == 500
    assert isinstance(response.error, holdfast.ConfigurationError)
    assert "ship() is a generator" in str(response.error)


async def test_a_handler_without_a_lock_gets_the_client_as_a_dependency(shop: Shop) -> None:
    @shop.app.get("/orders")
    async def ship(client: Annotated[holdfast.AsyncClient, Depends(holdfast.starlette.client)]) -> list[str]:
        async with client.lock("all orders"):
            return await shop.held()

    async with shop.application:
        response = await shop.request("/orders")

    assert response.json == ["all orders"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either the name or name_of="),
        ({"name": "a", "name_of": str}, "either the name or name_of="),
        ({"name": "order:{0}"}, "the name of a parameter"),
        ({"name": "order:{id"}, "cannot be read as a format"),
        ({"name": ""}, "must not be empty"),
        ({"name": "a", "busy": 200}, "busy must be the status of an error"),
        ({"name": "a", "busy": "423"}, "busy must be the status of an error"),
        ({"name": "a", "client": "redis://cache"}, "client must be an AsyncClient"),
        ({"name": "a", "retry_after": "soon"}, "retry_after"),
        ({"name": "a", "timeout": -1}, "timeout"),
        ({"name": "a", "tll": 5}, "ttl"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=message):
        lock(**arguments)
