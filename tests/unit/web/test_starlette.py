"""Hazard: leases that outlive the application, and handlers that do not find the client of their application."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import holdfast
import holdfast.starlette
from tests.support.asgi import Application


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


async def ship(request: Request) -> Response:
    async with holdfast.starlette.client(request).lock("order:1", timeout=0) as lease:
        return PlainTextResponse(str(lease.fence))


async def hold(request: Request) -> Response:
    request.app.state.lease = await request.state.holdfast.lock("forgotten").acquire()
    return PlainTextResponse("")


async def test_a_handler_gets_the_client_of_the_lifespan(url: str) -> None:
    app = Starlette(routes=[Route("/ship", ship)], lifespan=holdfast.starlette.lifespan(url))

    async with Application(app) as application:
        response = await application.request("/ship")

    assert response.status == 200
    assert int(response.body) > 0


async def test_the_end_of_the_application_releases_all_leases(url: str) -> None:
    app = Starlette(routes=[Route("/hold", hold)], lifespan=holdfast.starlette.lifespan(url, ttl=600))

    async with holdfast.AsyncClient(url) as observer:
        async with Application(app) as application:
            await application.request("/hold")
            assert (await observer.inspect("forgotten")).holders
        assert not (await observer.inspect("forgotten")).holders
        with pytest.raises(holdfast.UsageError, match="closed"):
            await application.state["holdfast"].inspect("forgotten")


async def test_a_handler_of_a_mounted_application_gets_the_client_of_the_outermost_one(url: str) -> None:
    inner = Starlette(routes=[Route("/ship", ship)])
    app = Starlette(routes=[Mount("/inner", inner)], lifespan=holdfast.starlette.lifespan(url))

    async with Application(app) as application:
        response = await application.request("/inner/ship")

    assert response.status == 200


async def test_a_lifespan_of_the_user_can_use_the_client_and_add_state(url: str) -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def own_lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with holdfast.starlette.lifespan(url)(app) as state:
            async with state["holdfast"].lock("migration"):
                steps.append("migrated")
            yield {**state, "database": "open"}
            steps.append("database closed")

    async def use(request: Request) -> Response:
        async with holdfast.starlette.client(request).lock("a", timeout=0):
            return PlainTextResponse(request.state.database)

    async with Application(Starlette(routes=[Route("/", use)], lifespan=own_lifespan)) as application:
        response = await application.request("/")

    assert response.body == b"open"
    assert steps == ["migrated", "database closed"]


async def test_an_application_without_the_lifespan_has_no_client() -> None:
    async with Application(Starlette(routes=[Route("/ship", ship)])) as application:
        response = await application.request("/ship")

    assert response.status == 500
    assert isinstance(response.error, holdfast.UsageError)
    assert "lifespan=holdfast.starlette.lifespan(url)" in str(response.error)


async def test_the_application_of_the_guide_answers_423_for_a_busy_lock() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "fastapi.md").read_text()
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(compile(example.replace("timeout=5", "timeout=0"), "fastapi.md", "exec"), names)  # noqa: S102 - ours

    async with Application(names["reports"]) as application:
        done = await application.request("/report", method="POST")
        async with application.state["holdfast"].lock("report"):
            task = asyncio.create_task(application.request("/report", method="POST"))
            busy = await task

    assert (done.status, done.body) == (200, b"done")
    assert (busy.status, busy.headers["retry-after"]) == (423, "1")
