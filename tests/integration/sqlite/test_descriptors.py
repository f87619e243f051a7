"""Hazard: a program that closes unknown descriptors, as some daemons do, ends the session of its client."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

import holdfast
from holdfast.backends.sqlite.config import config_of
from holdfast.backends.sqlite.io import sessions
from holdfast.backends.sqlite.io.aio import AsyncioPort
from holdfast.backends.sqlite.io.blocking import BlockingPort
from holdfast.core.tickets import Claim, Notification
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from tests.integration.sqlite.conftest import Store
from tests.support.processes import eventually


def test_a_holder_loses_the_lock_when_its_session_is_closed(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as other:
        lease = holder.lock("one").acquire()
        assert lease is not None
        (session,) = store.sessions.iterdir()

        _close_session(str(session))

        with other.lock("one", timeout=20) as successor:
            with pytest.raises(holdfast.LockLost, match="closed by another program"):
                lease.check()
            assert successor.fence > lease.fence


def test_a_client_whose_session_was_closed_opens_a_new_one_and_closes_no_other_descriptor(store: Store) -> None:
    with holdfast.Client(store.url) as client:
        with client.lock("one"):
            pass
        (session,) = store.sessions.iterdir()
        number = _close_session(str(session))
        reused = os.open(os.devnull, os.O_RDONLY)
        os.dup2(reused, number)

        with client.lock("one", timeout=20) as lease:
            lease.check()

        os.fstat(number)  # the client has not closed it
        for descriptor in {reused, number}:
            os.close(descriptor)


def test_a_lease_of_a_closed_session_stays_lost_when_its_client_has_made_a_new_session(store: Store) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as other:
        lease = holder.lock("one").acquire()
        assert lease is not None
        (session,) = store.sessions.iterdir()
        _close_session(str(session))

        with holder.lock("two", timeout=20):  # with a new session, in the same file
            pass

        with other.lock("one", timeout=20) as successor:
            with pytest.raises(holdfast.LockLost):
                lease.check()
            assert successor.held


def test_a_waiter_whose_session_was_closed_is_granted_the_lock_under_its_new_session(store: Store) -> None:
    clients = [holdfast.Client(store.url) for _ in range(3)]
    holder, waiter, other = clients
    try:
        held = holder.lock("one").acquire()
        assert held is not None
        before = set(store.sessions.iterdir())
        granted: list[holdfast.Lease | None] = []
        thread = threading.Thread(target=lambda: granted.append(waiter.lock("one").acquire(timeout=20)))
        thread.start()
        eventually(lambda: len(holder.inspect("one").waiters) == 1)
        (session,) = set(store.sessions.iterdir()) - before

        _close_session(str(session))
        held.release()
        thread.join()

        (lease,) = granted
        assert lease is not None
        assert other.lock("one").acquire(timeout=0) is None
        lease.check()
        lease.release()
    finally:
        for client in clients:
            client.close()


# The session is closed before the waiting ticket has subscribed to it, or after that. In most cases the descriptor of
# the new session has the number of the closed one.
MOMENTS = pytest.mark.parametrize("is_subscribed", [False, True], ids=["before", "after"])


@MOMENTS
def test_a_ticket_in_a_thread_is_notified_through_the_session_that_replaces_a_closed_one(
    store: Store, *, is_subscribed: bool
) -> None:
    runtime = ThreadRuntime()
    port = BlockingPort(config_of(parse(store.url)), runtime)
    claim = _waiting_claim(port)
    session = run_sync(port.transact(lambda txn: txn.session, deadline=runtime.now() + 20))
    _close_around(lambda: port.subscribe(claim.nonce, ()), store, session, is_subscribed=is_subscribed)

    session = run_sync(port.transact(lambda txn: txn.session, deadline=runtime.now() + 20))
    port.subscribe(claim.nonce, ())
    sessions.wake(str(store.sessions), session, Notification(claim.nonce))

    eventually(lambda: claim.notification is not None)
    run_sync(port.close())


@MOMENTS
async def test_a_ticket_in_a_task_is_notified_through_the_session_that_replaces_a_closed_one(
    store: Store, *, is_subscribed: bool
) -> None:
    runtime = AsyncioRuntime()
    port = AsyncioPort(config_of(parse(store.url)), runtime)
    claim = _waiting_claim(port)
    session = await port.transact(lambda txn: txn.session, deadline=runtime.now() + 20)
    _close_around(lambda: port.subscribe(claim.nonce, ()), store, session, is_subscribed=is_subscribed)

    session = await port.transact(lambda txn: txn.session, deadline=runtime.now() + 20)
    port.subscribe(claim.nonce, ())
    sessions.wake(str(store.sessions), session, Notification(claim.nonce))

    async with asyncio.timeout(20):
        while claim.notification is None:
            await asyncio.sleep(0)
    await port.close()


def _waiting_claim(port: BlockingPort | AsyncioPort) -> Claim:
    claim = Claim("one", ThreadRuntime().nonce(), 30.0, 1, exclusive=True, agent="me", info="{}")
    port.wakeups.expect(claim)
    return claim


def _close_around(subscribe: Callable[[], None], store: Store, session: str, *, is_subscribed: bool) -> None:
    """Close the session after the ticket has subscribed, or before."""
    if is_subscribed:
        subscribe()
    _close_session(str(store.sessions / session))
    if not is_subscribed:
        subscribe()


def _close_session(path: str) -> int:
    for number in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}") == path:
            os.close(int(number))
            return int(number)
    raise AssertionError(f"{path} is not open here")
