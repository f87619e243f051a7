"""Hazard: the server forgets its scripts (SCRIPT FLUSH, a restart, a failover) between any two steps."""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, take
from tests.support.redis.servers import Server


@pytest.mark.parametrize("method", ["queue", "setnx", "getset"])
def test_scripts_are_loaded_again_when_the_server_forgets_them_between_any_two_steps(
    method: str, server: Server, open_client: OpenClient
) -> None:
    url = f"{server.url}?method={method}"
    holder, waiter = open_client(url), open_client(url)

    def forget() -> None:
        server.call("SCRIPT", "FLUSH")

    forget()
    lease = take(holder.lock("one"), timeout=0)
    forget()
    lease.renew()
    forget()
    assert waiter.lock("one").acquire(timeout=0) is None
    forget()
    pending = acquiring(waiter.lock("one"))
    if method == "queue":
        await_waiters(holder, "one", 1)
    forget()
    assert [info.fence for info in waiter.inspect("one").holders] in ([lease.fence], [None])
    forget()
    lease.release()
    after = pending.result(timeout=20)
    assert after.fence > lease.fence
    forget()
    assert waiter.break_lock("one", after.fence)
    forget()
    with pytest.raises(holdfast.LockLost):
        after.release()
    assert_free_and_clean(server, "one")


async def test_a_batch_of_renewals_loads_the_script_again(server: Server) -> None:
    async with holdfast.AsyncClient(server.url) as client:
        leases = [await client.lock(f"many-{number}", ttl=3).acquire() for number in range(150)]
        server.call("SCRIPT", "FLUSH")

        first = leases[0]
        assert first is not None
        assert not await first.wait_lost(4)

        assert [lease for lease in leases if lease is None or not lease.held] == []
        server.call("SCRIPT", "FLUSH")
        for lease in leases:
            assert lease is not None
            await lease.release()
    assert server.call("KEYS", "holdfast:many-*") == []
