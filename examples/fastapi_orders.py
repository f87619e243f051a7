"""Orders that are paid once: a lock for each order, with FastAPI and any number of server processes.

    cd examples
    uvicorn fastapi_orders:app --workers 2
    curl -X POST localhost:8000/orders/7/pay & curl -i -X POST localhost:8000/orders/7/pay      # one of them gets 423

$HOLDFAST_URL is the store of the locks; without it, processes of this machine share a file. $ORDERS_DB is the database
of the orders. One of the processes also sends reminders; /health/leader answers 200 in this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel

import holdfast
import holdfast.asgi
import holdfast.fastapi
import holdfast.starlette
from holdfast.fencing.sql import SQLiteGuard

guard = SQLiteGuard()


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, holdfast.AsyncClient]]:
    async with holdfast.starlette.lifespan()(app) as state:
        election = state["holdfast"].election("reminders", ttl=10)
        app.mount("/health", holdfast.asgi.health(election))
        reminders = asyncio.create_task(election.run(send_reminders))
        yield state
        election.stop()
        await reminders


app = FastAPI(lifespan=lifespan)
order_lock = holdfast.fastapi.lock("order:{number}", ttl=10)


class Receipt(BaseModel):
    """The payment of an order. An order has at most one."""

    order: int
    payment: str


@app.post("/orders/{number}/pay")
async def pay(number: int, lease: Annotated[holdfast.AsyncLease, order_lock]) -> Receipt:
    with open_database() as database:
        paid = database.execute("SELECT payment FROM payments WHERE number = ?", (number,)).fetchone()
    if paid:
        return Receipt(order=number, payment=paid[0])
    payment = await charge(number)
    with open_database() as database:
        guard.check(database.cursor(), f"order:{number}", lease.fence)  # StaleFence after a newer lease has written
        database.execute("INSERT INTO payments VALUES (?, ?)", (number, payment))
    return Receipt(order=number, payment=payment)


async def charge(number: int) -> str:
    """The call of a payment provider. A real one gets the number as its idempotency key."""
    await asyncio.sleep(0.5)
    return f"payment {uuid.uuid4()} of order {number}"


async def send_reminders(lease: holdfast.AsyncLease) -> None:
    while True:
        lease.check()
        print(f"process {os.getpid()} sends reminders, term {lease.fence}", flush=True)
        await asyncio.sleep(1)


@contextlib.contextmanager
def open_database() -> Iterator[sqlite3.Connection]:
    """A transaction of its own, in a new connection."""
    with contextlib.closing(sqlite3.connect(os.environ.get("ORDERS_DB", "orders.db"))) as database, database:
        guard.create(database.cursor())
        database.execute("CREATE TABLE IF NOT EXISTS payments (number INTEGER, payment TEXT)")
        yield database
