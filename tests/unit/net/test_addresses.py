"""Hazard: name servers do not answer. getaddrinfo() has no deadline, but a request, the keeper and a loop need one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.backends.net import addresses
from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.aio import LoopPoller
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import run_sync
from tests.support.processes import eventually

HOST = "db.holdfast.example"
ADDRESSES = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]
URLS = {
    "redis": f"redis://{HOST}/0?connect_timeout=0.3",
    "sentinel": f"redis+sentinel://{HOST}/service?connect_timeout=0.3",
    "redlock": f"redlock://{HOST},b.{HOST},c.{HOST}?connect_timeout=0.3",
    "memcached": f"memcached://{HOST}?connect_timeout=0.3",
    "etcd": f"etcd://{HOST}?connect_timeout=0.3",
    "mysql": f"mysql://{HOST}/db?connect_timeout=0.3",
    "postgresql": f"postgresql://{HOST}/db?connect_timeout=0.3",
    "zookeeper": f"zookeeper://{HOST}",
}


class NameServers:
    """Answers every look-up while `answer` is set."""

    def __init__(self) -> None:
        self.lookups = 0
        self.answer = threading.Event()
        self.answer.set()
        self.error: OSError | None = None

    def getaddrinfo(self, host: str, *_: object, **__: object) -> list[Any]:
        self.lookups += 1
        self.answer.wait(60)
        if self.error is not None:
            raise self.error
        return ADDRESSES


@pytest.fixture
def name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    servers = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", servers.getaddrinfo)
    addresses._answers.clear()
    yield servers
    servers.answer.set()
    eventually(lambda: not addresses._lookups)
    addresses._answers.clear()


def look_up(host: str = HOST, seconds: float = 30.0) -> list[str]:
    return run_sync(addresses_of(host, BlockingPoller(), system.now() + seconds))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_ip_address_is_not_looked_up(name_servers: NameServers, host: str) -> None:
    assert look_up(host) == [host]
    assert name_servers.lookups == 0


def test_a_lookup_that_gets_no_answer_ends_at_the_deadline(name_servers: NameServers) -> None:
    name_servers.answer.clear()

    with pytest.raises(TimeoutError, match=f"look-up of {HOST}"):
        look_up(seconds=0.1)


async def test_a_lookup_on_a_loop_blocks_neither_the_loop_nor_its_executor(name_servers: NameServers) -> None:
    asyncio.get_running_loop().set_default_executor(executor := ThreadPoolExecutor(1))
    busy = asyncio.get_running_loop().run_in_executor(None, (work := threading.Event()).wait)
    poller = LoopPoller(AsyncioRuntime())

    assert await addresses_of(HOST, poller, system.now() + 30) == ["192.0.2.7"]
    addresses._answers.clear()
    name_servers.answer.clear()
    with pytest.raises(TimeoutError):
        await addresses_of(HOST, poller, system.now() + 0.1)

    work.set()
    assert await busy
    executor.shutdown()


def test_callers_share_one_lookup(name_servers: NameServers) -> None:
    name_servers.answer.clear()
    with ThreadPoolExecutor(8) as callers:
        futures = [callers.submit(look_up) for _ in range(8)]
        eventually(lambda: name_servers.lookups == 1)
        name_servers.answer.set()

        assert [future.result() for future in futures] == 8 * [["192.0.2.7"]]
    assert name_servers.lookups < 8


def test_every_caller_gets_a_separate_error(name_servers: NameServers) -> None:
    name_servers.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for _ in range(2):
        with pytest.raises(socket.gaierror, match="not known"):
            look_up()


@pytest.mark.parametrize("failure", ["silence", "try again"])
def test_a_recent_answer_is_used_while_lookups_fail(name_servers: NameServers, failure: str) -> None:
    assert look_up() == ["192.0.2.7"]
    if failure == "silence":
        name_servers.answer.clear()
    else:
        name_servers.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    assert look_up(seconds=0.2) == ["192.0.2.7"]


def test_an_old_answer_is_not_used(name_servers: NameServers, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up()
    name_servers.answer.clear()
    monkeypatch.setattr(addresses, "KEPT_MAX", -1.0)

    with pytest.raises(TimeoutError):
        look_up(seconds=0.1)


def test_the_last_answer_is_not_used_when_the_host_no_longer_exists(name_servers: NameServers) -> None:
    look_up()
    name_servers.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(socket.gaierror):
        look_up()


def test_a_lookup_is_an_error_and_is_not_kept_when_no_thread_starts(
    name_servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread can be started"):
            look_up()

    assert look_up() == ["192.0.2.7"]


@pytest.mark.parametrize("store", URLS)
def test_acquire_returns_in_time_while_name_servers_are_silent(name_servers: NameServers, store: str) -> None:
    name_servers.answer.clear()
    client = holdfast.Client(URLS[store])
    began = time.monotonic()

    with pytest.raises(holdfast.BackendError):
        client.lock("a").acquire(timeout=0)

    assert time.monotonic() - began < 30  # name_servers are silent for longer
    client.close()


@pytest.mark.parametrize("store", URLS)
async def test_acquire_on_a_loop_returns_in_time_while_name_servers_are_silent(
    name_servers: NameServers, store: str
) -> None:
    name_servers.answer.clear()
    began = time.monotonic()
    async with holdfast.AsyncClient(URLS[store]) as client:
        with pytest.raises(holdfast.BackendError):
            await client.lock("a").acquire(timeout=0)

    assert time.monotonic() - began < 30
