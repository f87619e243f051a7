"""Hazard: concurrent steps of one owner wait for row locks, which the model with its atomic steps cannot show."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

from holdfast.core.tickets import Claim, Granted
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually


@pytest.fixture
def schema(url: str) -> sql.Identifier:
    return sql.Identifier(parse_qs(urlsplit(url).query)["schema"][0])


def repeat_try_acquire(connection: Any, schema: sql.Identifier, ticket: Claim) -> None:
    """The statement of a delayed request, in a transaction of the test."""
    try_acquire = "SELECT * FROM {}.holdfast_enter_owner(%s, %s, 30000000, true, 'main', '{{}}', 'nobody', %s)"
    connection.execute(sql.SQL(try_acquire).format(schema), [ticket.name, ticket.nonce, ticket.owner])


def test_a_renewal_finds_its_ticket_when_a_repeated_try_acquire_is_concurrent(
    server: Server, schema: sql.Identifier, driver: Driver
) -> None:
    (ticket,) = driver.tickets(["a"], "job")
    driver.try_acquire(ticket)
    renewed: list[bool] = []
    renewing = threading.Thread(target=lambda: renewed.append(driver.renew(ticket)))

    with server.connect() as late, late.transaction():
        repeat_try_acquire(late, schema, ticket)
        renewing.start()
        eventually(lambda: server.is_blocked("%holdfast_renew(%"))
    renewing.join(30)

    assert renewed == [True]


def test_a_ticket_gets_a_new_fence_when_the_last_ticket_of_its_owner_is_released(
    server: Server, schema: sql.Identifier, url: str, driver: Driver
) -> None:
    (first,) = driver.tickets(["a"], "job")
    before = driver.try_acquire(first)
    other = Driver(url)
    (second,) = other.tickets(["a"], "job")
    after: list[Any] = []
    acquiring = threading.Thread(target=lambda: after.append(other.try_acquire(second)))

    with server.connect() as releaser, releaser.transaction():
        release = sql.SQL("SELECT {}.holdfast_leave('a', %s, false)").format(schema)
        releaser.execute(release, [first.nonce])
        acquiring.start()
        eventually(lambda: server.is_blocked("%holdfast_enter_owner(%"))
    acquiring.join(30)

    assert isinstance(before, Granted)
    assert after[0].fence > before.fence
    other.close()
