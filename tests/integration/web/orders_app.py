"""An application for tests: requests hold the lock of their order until a file exists.

$STORE is the URL of the store, $GATE the path of that file.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from fastapi import FastAPI

import holdfast.starlette
from holdfast import AsyncLease
from holdfast.fastapi import lock

TTL = 2.0  # seconds
GATE = os.environ["GATE"]

app = FastAPI(lifespan=holdfast.starlette.lifespan(os.environ["STORE"], ttl=TTL))


@app.post("/orders/{number}")
async def ship(number: int, lease: Annotated[AsyncLease, lock("order:{number}")]) -> int:
    while not os.path.exists(GATE):  # noqa: ASYNC240 - a local file
        await asyncio.sleep(0.01)
    return lease.fence


@app.get("/live")
async def live() -> None:
    pass


class ProcessHeader:
    """Adds the process to each response, also to those that have no handler."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-process", str(os.getpid()).encode())]
            await send(message)

        await self._app(scope, receive, send_with_header)


app.add_middleware(ProcessHeader)
