"""Hazard: the server's wall clock is set forward or back. Redis counts every expiry on it.

After a step forward a lease expires early and another client is granted. This cannot be prevented and is documented. So
the fence has to grow, and the old holder has to learn of its loss at its next renewal. After a step back, fences must
not repeat.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import as_completed
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, take
from tests.support.processes import eventually
from tests.support.redis.clock import WallClock
from tests.support.redis.servers import Server

METHODS = ["queue", "setnx"]


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock")


@pytest.fixture
def own_server(start_server: StartServer, clock: WallClock) -> Server:
    server = start_server(environment=clock.environment)
    before = int(server.call("TIME")[0])
    clock.step(1000)
    eventually(lambda: int(server.call("TIME")[0]) >= before + 1000)  # Valkey reads the clock a few times a second
    return server


@pytest.mark.parametrize("method", METHODS)
def test_a_step_forward_grants_the_waiter_a_greater_fence_and_the_old_lease_is_lost(
    method: str, clock: WallClock, own_server: Server, open_client: OpenClient
) -> None:
    url = f"{own_server.url}?method={method}"
    holder, waiter = open_client(url), open_client(url)
    old = take(holder.lock("one", ttl=30))
    pending = acquiring(waiter.lock("one", ttl=30))
    if method == "queue":
        await_waiters(holder, "one", 1)

    clock.step(60)
    new = pending.result(timeout=20)

    assert new.fence > old.fence
    with pytest.raises(holdfast.LockLost):
        old.renew()
    new.renew()
    new.release()
    assert_free_and_clean(own_server, "one")


def test_a_step_forward_with_many_waiters_grants_all_of_them(
    clock: WallClock, own_server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(own_server.url), open_client(own_server.url, local_handover="no")
    lease = take(holder.lock("one", ttl=300))
    pending = [acquiring(waiter.lock("one", ttl=300)) for _ in range(5)]
    await_waiters(holder, "one", 5)

    clock.step(60)  # later than the end of every waiter's lease, earlier than the end of the holder's
    lease.release()

    fences = [lease.fence]
    for done in as_completed(pending, timeout=60):
        fences.append(done.result().fence)
        done.result().release()
    assert fences == sorted(set(fences))
    assert_free_and_clean(own_server, "one")


def test_after_a_step_back_fences_still_grow(clock: WallClock, own_server: Server, open_client: OpenClient) -> None:
    client = open_client(own_server.url)
    fences = []

    for _ in range(5):
        lease = take(client.lock("one"))
        fences.append(lease.fence)
        lease.release()
        clock.step(-600)

    assert fences == sorted(set(fences))


def test_a_step_back_under_holder_and_waiter_changes_nothing_for_them(
    clock: WallClock, own_server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(own_server.url), open_client(own_server.url)
    lease = take(holder.lock("one", ttl=5))
    pending = acquiring(waiter.lock("one", ttl=5))
    await_waiters(holder, "one", 1)

    clock.step(-600)

    assert not lease.wait_lost(4)
    assert own_server.call("PTTL", "holdfast:one") <= 5000  # a renewal has set the ttl again
    lease.release()
    after = pending.result(timeout=20)
    assert after.fence > lease.fence
    after.release()
    assert_free_and_clean(own_server, "one")


def test_a_client_clock_that_is_wrong_by_an_hour_has_no_effect(
    clock: WallClock, server: Server, open_client: OpenClient
) -> None:
    """A client does not send its own time to the server."""
    clock.step(3600)
    code = (
        "import sys, time, holdfast\n"
        "with holdfast.Client(sys.argv[1]) as client, client.lock('one', ttl=30) as lease:\n"
        "    print(lease.fence, time.time())\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as child:
        assert child.stdout is not None
        fence, child_time = child.stdout.readline().split()
        client = open_client(server.url)
        ttl_ms = server.call("PTTL", "holdfast:one")
        busy = client.lock("one").acquire(timeout=0)
        child.communicate("\n")

    assert float(child_time) > int(server.call("TIME")[0]) + 3000
    assert 0 < ttl_ms <= 30_000
    assert busy is None
    lease = take(client.lock("one"), timeout=0)
    assert lease.fence > int(fence)
    lease.release()
