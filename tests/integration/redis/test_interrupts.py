"""Hazard: Ctrl-C between a request and its reply: the server grants a lock without a client, or the next request on
that connection reads the reply to the interrupted request.

The server is stopped (SIGSTOP) before the request is sent, so the server has not read it when the interrupt arrives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import assert_free_and_clean, await_waiters, take
from tests.support.processes import Worker, WorkerPool, eventually
from tests.support.redis.servers import Server


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(os.path.join(os.path.dirname(__file__), "interrupted.py")) as pool:
        yield pool


@pytest.fixture
def own_server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
def child(pool: WorkerPool, own_server: Server) -> Worker:
    """A process whose connections are open and whose scripts are loaded."""
    worker = pool.start(own_server.url)
    worker.call("acquire", lock="warm-up")
    worker.call("release")
    return worker


def interrupt_unanswered(server: Server, child: Worker) -> None:
    """Send Ctrl-C when the child's request has arrived at the server, which has not read it."""
    eventually(lambda: _unread(server) > 0)
    os.kill(child.pid, signal.SIGINT)


def test_an_acquire_interrupted_before_its_reply_leaves_no_lock(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    own_server.stop()
    child.send("acquire", lock="one")
    interrupt_unanswered(own_server, child)
    reported = child.receive()
    own_server.resume()  # now the server grants it

    assert reported == {"interrupted": True}
    eventually(lambda: "holdfast:one" not in own_server.all_keys())
    other = open_client(own_server.url)
    lease = take(other.lock("one"), timeout=10)
    assert child.call("acquire", lock="one", timeout=0) == {"acquired": False}
    lease.release()
    again = child.call("acquire", lock="one", timeout=10)
    assert again["fence"] > lease.fence
    child.call("release")
    child.call("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupted_release_frees_the_lock(own_server: Server, child: Worker, open_client: OpenClient) -> None:
    child.call("acquire", lock="one")
    own_server.stop()
    child.send("release")
    interrupt_unanswered(own_server, child)
    reported = child.receive()
    own_server.resume()

    assert reported == {"interrupted": True}
    take(open_client(own_server.url).lock("one"), timeout=10).release()
    child.call("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupt_at_the_end_of_the_body_frees_the_lock(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    child.call("body", lock="one")
    own_server.stop()
    child.send("leave")
    interrupt_unanswered(own_server, child)
    reported = child.receive()
    own_server.resume()

    assert reported == {"interrupted": True}
    take(open_client(own_server.url).lock("one"), timeout=10).release()
    child.call("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupted_wait_leaves_no_queue_entry(own_server: Server, child: Worker, open_client: OpenClient) -> None:
    holder = open_client(own_server.url)
    lease = take(holder.lock("one"))
    child.send("acquire", lock="one")
    await_waiters(holder, "one", 1)

    os.kill(child.pid, signal.SIGINT)

    assert child.receive() == {"interrupted": True}
    await_waiters(holder, "one", 0)
    lease.release()
    child.call("acquire", lock="one", timeout=10)
    child.call("release")
    child.call("end")
    assert_free_and_clean(own_server, "one")


def _unread(server: Server) -> int:
    """Bytes that have arrived at the server's port and have not been read by it."""
    port = f":{server.port:04X}"
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port) and row[3] == "01")
