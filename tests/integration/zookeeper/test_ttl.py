"""Hazard: the lock of a dead client is free only after 30 s although its ttl is short; a client has many sessions."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.integration.conftest import OpenClient
from tests.support.processes import WorkerPool, eventually

WORKER = Path(__file__).parents[2] / "support" / "worker.py"
WAIT_MAX = 20.0  # seconds: much more than a ttl of 1 s and a few ticks, and less than a session of 30 s


def test_a_lock_is_free_soon_after_the_ttl_when_its_holder_is_killed(url: str, open_client: OpenClient) -> None:
    with WorkerPool(str(WORKER)) as pool:
        holder = pool.start(url)
        holder.call("acquire", lock="a", ttl=1)
        holder.kill()

    with open_client(url).lock("a", ttl=1, timeout=WAIT_MAX):
        pass


def test_a_killed_waiter_blocks_a_free_lock_for_at_most_its_ttl(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    lease = client.lock("a").acquire()
    assert lease is not None
    with WorkerPool(str(WORKER)) as pool:
        waiter = pool.start(url)
        waiter.send("acquire", lock="a", ttl=1)
        eventually(lambda: len(client.inspect("a").waiters) == 1)
        waiter.kill()
    lease.release()

    with client.lock("a", timeout=WAIT_MAX):
        pass


def test_a_client_has_at_most_three_sessions_and_none_longer_than_the_ttl(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    port = client._engine.backend._port  # type: ignore[attr-defined]  # only ZooKeeper has it
    with contextlib.ExitStack() as stack:
        for ttl in (30, 5, 3, 4, 12, 60):
            stack.enter_context(client.lock(f"lock-{ttl}", ttl=ttl))
            assert min(session.timeout for session in port.sessions) <= ttl

        assert sorted(session.timeout for session in port.sessions) == [3.0, 5.0, 30.0]
        assert client.warnings == ()


def test_an_idle_session_makes_room_for_one_with_another_timeout(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    port = client._engine.backend._port  # type: ignore[attr-defined]
    for ttl in (30, 5, 3):
        with client.lock("a", ttl=ttl):
            pass

    def has_room() -> bool:
        with client.lock("a", ttl=2):
            return 2.0 in [session.timeout for session in port.sessions]

    eventually(has_room)
    assert len(port.sessions) <= 3


def test_locks_of_different_ttls_exclude_each_other_and_are_acquired_at_once(url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(url)
    with client.lock("a", ttl=3), client.lock("b", ttl=30):
        assert other.lock("a", ttl=30).acquire(timeout=0) is None
        assert other.lock("b", ttl=3).acquire(timeout=0) is None

    with client.lock_all(["a", "b"], ttl=3), client.lock("c", ttl=30):
        assert other.lock("a").acquire(timeout=0) is None


def test_a_session_that_is_longer_than_the_ttl_causes_a_warning(url: str, open_client: OpenClient) -> None:
    client = open_client(f"{url}?session_timeout=6")
    with client.lock("a", ttl=30):
        assert not client.warnings

    with client.lock("a", ttl=1.5):
        warnings = " ".join(client.warnings)

    assert "after 6 s" in warnings
    assert "ttl of 1.5 s" in warnings
