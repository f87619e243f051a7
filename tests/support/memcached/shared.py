"""Servers that tests share: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import uuid

from tests.support.memcached.servers import Server, running


def fresh_url(**options: str) -> str:
    """One server, with a prefix that no other test uses."""
    return _url(1, options)


def fresh_ring_url(**options: str) -> str:
    """The same, spread over three servers."""
    return _url(3, options)


def _url(number: int, options: dict[str, str]) -> str:
    options = {"prefix": f"{uuid.uuid4().hex}:", **options}
    places = ",".join(server.address for server in _servers()[:number])
    return f"memcached://{places}?{'&'.join(f'{option}={value}' for option, value in options.items())}"


@functools.cache
def _servers() -> list[Server]:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return [stack.enter_context(running(Server())) for _ in range(3)]
