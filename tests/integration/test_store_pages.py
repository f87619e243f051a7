"""Hazard: the first program of a store's page does not run on that store.

The URLs of the pages are for a server with its default port. The tests replace them by the URLs of their servers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import psycopg
import pytest

import holdfast
from holdfast.url import parse
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.nats import shared as nats
from tests.support.pages import Block, blocks, pages
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper

URLS: dict[str, Callable[[], str]] = {
    "redis://localhost:6379/0": redis.fresh_url,
    "redlock://localhost:6379,localhost:6380,localhost:6381": redis.fresh_redlock_url,
    "postgresql://postgres@localhost:5432/postgres": postgresql.fresh_url,
    "mysql://root@localhost:3306/app": mysql.fresh_url,
    "etcd://localhost:2379": etcd.fresh_url,
    "zookeeper://localhost:2181": zookeeper.fresh_url,
    "nats://localhost:4222": nats.fresh_url,
    "memcached://localhost:11211": memcached.fresh_url,
}
BLOCKS = [
    block for page in pages() for block in blocks(page) if block.run_by == "tests/integration/test_store_pages.py"
]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.page
)
def test_the_program_of_a_page_runs_on_its_store(block: Block) -> None:
    exec(compile(_with_test_servers(block.code), block.location, "exec"), {})  # noqa: S102  (the examples are ours)


def _with_test_servers(code: str) -> str:
    (url,) = [url for url in URLS if f'"{url}"' in code]
    fresh = URLS[url]()
    if f'psycopg.connect("{url}")' in code:
        code = code.replace(f'psycopg.connect("{url}")', f"psycopg.connect({_url_of_psycopg(fresh)!r})")
    code = code.replace(f'from_url("{url}")', f"from_url({fresh.partition('?')[0]!r})")
    return code.replace(f'"{url}"', repr(fresh))


def _url_of_psycopg(url: str) -> str:
    """The same server and database, with a new schema as the default one."""
    base, schema = url.partition("?")[0], parse(url).options["schema"]
    with psycopg.connect(base) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{base}?options=-csearch_path%3D{schema}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "sql"], ids=lambda block: block.page)
def test_the_queries_of_a_page_show_a_holder(block: Block) -> None:
    is_mysql = "mysql" in block.page
    url = mysql.fresh_url() if is_mysql else postgresql.fresh_url()
    name = uuid.uuid4().hex
    with holdfast.Client(url) as client, client.lock(name):
        for statement in filter(None, map(str.strip, block.code.split(";"))):
            rows = (
                mysql.server().rows(statement, database=parse(url).path.strip("/"))
                if is_mysql
                else _postgresql_rows(url, statement)
            )
            if "tickets" not in statement:  # of waiters
                assert [row for row in rows if row[0] == name]


def _postgresql_rows(url: str, statement: str) -> list[tuple[object, ...]]:
    base, schema = url.partition("?")[0], parse(url).options["schema"]
    with psycopg.connect(base) as connection:
        connection.execute(f"SET search_path TO {schema}")
        return list(connection.execute(statement).fetchall())
