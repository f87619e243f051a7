"""An application for tests: a request acquires the lock of an order, and a Celery task continues with the lease.

The variables are those of tests/support/celery/program.py.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from fastapi import FastAPI

import holdfast.starlette
from holdfast import AsyncLease
from holdfast.fastapi import lock
from tests.support.celery import PROGRAM, load

program = load(PROGRAM, "program", os.environ)
app = FastAPI(lifespan=holdfast.starlette.lifespan(os.environ["STORE_URL"], ttl=2.0))


@app.post("/orders/{number}")
async def ship(number: int, lease: Annotated[AsyncLease, lock("order:{number}")]) -> dict[str, int]:
    text = await lease.transfer(within=120)
    await asyncio.to_thread(program.ship.delay, f"order:{number}", text)
    return {"fence": lease.fence, "pid": os.getpid()}


@app.get("/live")
async def live() -> None:
    pass
