"""Isolated stores in memory, in real time, and the check that no lease is left."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

from holdfast import default
from holdfast.aio.client import AsyncClient
from holdfast.testing.clients import end_without_loop
from holdfast.threads.client import Client


@contextlib.contextmanager
def memory_client(*, allow_held: bool = False) -> Iterator[Client]:
    """A client on a store in memory that nothing else uses.

    Raises:
        AssertionError: at the end a lock of this store is held, unless `allow_held`.
    """
    with Client(_new_url()) as client:
        yield client
        _check_released(client, allow_held=allow_held)


@contextlib.contextmanager
def memory_async_client(*, allow_held: bool = False) -> Iterator[AsyncClient]:
    """The same for asyncio. A plain `with`: it is made before the loop of the test, and ended after it."""
    url = _new_url()
    with Client(url) as observer:
        client = AsyncClient(url)
        try:
            yield client
            _check_released(observer, allow_held=allow_held)
        finally:
            end_without_loop(client)


@contextlib.contextmanager
def memory_default(*, allow_held: bool = False) -> Iterator[Client]:
    """The same, as the default client: for `holdfast.lock`, and for all clients that are made without a URL."""
    variable, before = "HOLDFAST_URL", default._clients.made
    url_before = os.environ.get(variable)
    with memory_client(allow_held=allow_held) as client:
        default._clients.made = {"": client}
        os.environ[variable] = client.url
        try:
            yield client
        finally:
            default._clients.made = before
            if url_before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = url_before


def _new_url() -> str:
    return f"memory://test-{uuid.uuid4().hex}"


def _check_released(client: Client, *, allow_held: bool) -> None:
    held = [info for info in client.locks() if info.holders]
    if held and not allow_held:
        shown = ", ".join(f"{info.name!r} (by {info.holders[0].agent})" for info in held)
        raise AssertionError(
            f"the test ends while locks are held: {shown}. If that is right, mark it with holdfast_allow_held, or pass "
            "allow_held=True"
        )
