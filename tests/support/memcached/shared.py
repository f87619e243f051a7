"""Servers that tests share: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid

from tests.support.memcached.servers import Server
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """One server, with a prefix that no other test uses."""
    return _url(1, options)


def fresh_ring_url(**options: str) -> str:
    """The same, spread over three servers."""
    return _url(3, options)


def _url(number: int, options: dict[str, str]) -> str:
    options = {"prefix": f"{uuid.uuid4().hex}:", **options}
    hosts = ",".join(server.address for server in _servers()[:number])
    return f"memcached://{hosts}?{'&'.join(f'{option}={value}' for option, value in options.items())}"


@functools.cache
def _servers() -> list[Server]:
    return [until_exit(lambda _: Server()) for _ in range(3)]
