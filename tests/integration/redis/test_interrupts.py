"""Hazard: Ctrl-C between sending a request and reading its answer: the server grants a lock to nobody, or the next
request on that connection reads the answer to the one before.

The server stands still (SIGSTOP) when the request is sent, so that it lies unread when the interrupt comes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.redis.conftest import OpenClient, StartServer
from tests.integration.redis.scenes import assert_free_and_clean, await_waiters, take
from tests.support.processes import Crew, Worker, eventually
from tests.support.redis.servers import Server


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew(os.path.join(os.path.dirname(__file__), "interrupted.py")) as crew:
        yield crew


@pytest.fixture
def own_server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
def child(crew: Crew, own_server: Server) -> Worker:
    """With open connections, and scripts that the server knows."""
    worker = crew.start(own_server.url)
    worker.ask("acquire", lock="warm-up")
    worker.ask("release")
    return worker


def interrupt_unanswered(server: Server, child: Worker) -> None:
    """Ctrl-C when the child's request lies unread at the server."""
    eventually(lambda: _unread(server) > 0)
    os.kill(child.pid, signal.SIGINT)


def test_an_acquire_interrupted_before_its_answer_leaves_no_lock_behind(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    own_server.stop()
    child.tell("acquire", lock="one")
    interrupt_unanswered(own_server, child)
    heard = child.hear()
    own_server.resume()  # now the server grants it

    assert heard == {"interrupted": True}
    eventually(lambda: "holdfast:one" not in own_server.all_keys())
    other = open_client(own_server.url)
    lease = take(other.lock("one"), timeout=10)
    assert child.ask("acquire", lock="one", timeout=0) == {"acquired": False}
    lease.release()
    again = child.ask("acquire", lock="one", timeout=10)
    assert again["fence"] > lease.fence
    child.ask("release")
    child.ask("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupted_release_frees_the_lock_all_the_same(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    child.ask("acquire", lock="one")
    own_server.stop()
    child.tell("release")
    interrupt_unanswered(own_server, child)
    heard = child.hear()
    own_server.resume()

    assert heard == {"interrupted": True}
    take(open_client(own_server.url).lock("one"), timeout=10).release()
    child.ask("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupt_while_leaving_the_body_frees_the_lock_all_the_same(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    child.ask("body", lock="one")
    own_server.stop()
    child.tell("leave")
    interrupt_unanswered(own_server, child)
    heard = child.hear()
    own_server.resume()

    assert heard == {"interrupted": True}
    take(open_client(own_server.url).lock("one"), timeout=10).release()
    child.ask("end")
    assert_free_and_clean(own_server, "one")


def test_an_interrupted_wait_leaves_no_place_in_the_queue(
    own_server: Server, child: Worker, open_client: OpenClient
) -> None:
    holder = open_client(own_server.url)
    lease = take(holder.lock("one"))
    child.tell("acquire", lock="one")
    await_waiters(holder, "one", 1)

    os.kill(child.pid, signal.SIGINT)

    assert child.hear() == {"interrupted": True}
    await_waiters(holder, "one", 0)
    lease.release()
    child.ask("acquire", lock="one", timeout=10)
    child.ask("release")
    child.ask("end")
    assert_free_and_clean(own_server, "one")


def _unread(server: Server) -> int:
    """Bytes that have arrived at the server's port and have not been read by it."""
    port = f":{server.port:04X}"
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port) and row[3] == "01")
