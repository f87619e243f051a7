"""One server for all tests that only need some MariaDB: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid

from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.url import parse
from tests.support.mysql.servers import Server
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """A URL with tables for one test. They are created here, because that takes longer than some tests wait.

    The server has no TLS. To prefer it would let PyMySQL read all certificates of the machine at each login.
    """
    url = server().url_of(fresh_database(), **{"tls": "no", **options})
    create_tables(parse(url))
    return url


def fresh_database() -> str:
    database = f"test_{uuid.uuid4().hex}"
    server().rows(f"CREATE DATABASE {database}", database="")
    return database


@functools.cache
def server() -> Server:
    return until_exit(Server)
