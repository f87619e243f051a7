"""The types of the public API: `make lint` checks these lines; running them only shows that the names exist."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_type

import holdfast


def use_threads(client: holdfast.Client) -> None:
    with client.lock("a", ttl=10, timeout=5, meta={"job": 1}) as lease:
        assert_type(lease, holdfast.Lease)
        assert_type(lease.fence, int)
        assert_type(lease.remaining, float)
        assert_type(lease.lost, bool)
        lease.check()
        assert_type(lease.wait_lost(0), bool)

    taken = client.lock("a").acquire(timeout=0)
    assert_type(taken, holdfast.Lease | None)
    if taken:
        taken.release()
    if TYPE_CHECKING:
        assert_type(client.lock("a").acquire(blocking=False), holdfast.Lease | None)
        assert_type(client.semaphore("d", 2).acquire(False), holdfast.Lease | None)  # noqa: FBT003 - as in threading
        assert_type(client.rwlock("e").read().acquire(blocking=True, timeout=0), holdfast.Lease | None)
        assert_type(client.lock_all(["f"]).acquire(blocking=False), holdfast.LeaseAll | None)

        async def enter() -> None:
            async with client.lock("a"):  # type: ignore[attr-defined]  # mypy reports `async with` on a lock for threads
                pass

    assert_type(client.rwlock("b").read(), holdfast.Lock)
    assert_type(client.semaphore("c", limit=2), holdfast.Semaphore)
    assert_type(client.inspect("a"), holdfast.LockInfo)
    assert_type(client.locks(), list[holdfast.LockInfo])
    assert_type(client.break_lock("a", 1), bool)
    assert_type(client.guarantees, holdfast.Guarantees)


async def use_asyncio(client: holdfast.AsyncClient) -> None:
    async with client.lock("a", on_lost="event") as lease:
        assert_type(lease, holdfast.AsyncLease)
        await lease.renew()
        assert_type(await lease.wait_lost(0), bool)

    lock = client.lock("a")
    taken = await lock.acquire(timeout=0)
    assert_type(taken, holdfast.AsyncLease | None)
    if taken:
        await taken.release()
    assert_type(await lock.locked(), bool)
    if TYPE_CHECKING:
        assert_type(await lock.acquire(blocking=False), holdfast.AsyncLease | None)
        assert_type(await client.lock_all(["f"]).acquire(blocking=False), holdfast.AsyncLeaseAll | None)
        with client.lock("a"):  # type: ignore[attr-defined]  # mypy reports `with` on a lock for asyncio
            pass


def elect(client: holdfast.Client) -> None:
    election = client.election("e", ttl=10, meta={"zone": "a"})
    assert_type(election, holdfast.Election)
    assert_type(election.campaign(timeout=0), holdfast.Lease | None)
    leader = election.leader()
    assert_type(leader, holdfast.Leader | None)
    if leader:
        assert_type(leader.term, int)
        assert_type(leader.since, float)
    election.resign()
    with election as lease:
        assert_type(lease, holdfast.Lease)
    for observed in election.observe(every=0.1, timeout=0):
        assert_type(observed, holdfast.Leader | None)

    def report(leader: holdfast.Leader | None) -> None: ...

    end = election.on_change(report)
    end()

    def work(lease: holdfast.Lease) -> None:
        election.stop()

    election.run(work)
    assert_type(election.stopped, bool)


async def elect_in_asyncio(client: holdfast.AsyncClient) -> None:
    election = client.election("e", ttl=10)
    assert_type(election, holdfast.AsyncElection)
    assert_type(await election.campaign(timeout=0), holdfast.AsyncLease | None)
    assert_type(await election.leader(), holdfast.Leader | None)
    await election.resign()
    async for observed in election.observe(timeout=0):
        assert_type(observed, holdfast.Leader | None)

    async def report(leader: holdfast.Leader | None) -> None: ...

    election.on_change(report)()

    async def work(lease: holdfast.AsyncLease) -> None:
        election.stop()

    await election.run(work)


def any_lease() -> holdfast.Lease:
    raise NotImplementedError  # only its type is used


def decorate(client: holdfast.Client) -> None:
    @client.locked("a:{day}", timeout=5)
    def kept(day: str, *, count: int = 1) -> int:
        return len(day) * count

    @client.locked("a", busy="skip")
    def maybe() -> int:
        return 1

    @holdfast.locked(name_of=lambda: "a", busy="skip", skipped=False)
    def or_else() -> int:
        return 1

    class Shop:
        @client.locked("shop:{self}", busy="raise")
        def sell(self, item: str) -> str:
            return item

        def __str__(self) -> str:
            return "corner"

    @client.locked("a", lease="lease")
    def leased(lease: holdfast.Lease, day: str, *, count: int = 1) -> int:
        return lease.fence * len(day) * count

    @client.locked("a", busy="skip", skipped=b"", lease="lease")
    def leased_or_else(lease: holdfast.Lease, day: str) -> str:
        return day

    @holdfast.once_per("1h", name="a", lease="lease")
    def hourly(lease: holdfast.Lease, day: str) -> str:
        return day

    class Stock:
        @client.locked("a", lease="lease")
        def count(self, lease: holdfast.Lease, item: str) -> str:
            return item

    assert_type(leased("monday", count=2), int)
    assert_type(leased_or_else("monday"), str | bytes)
    assert_type(Stock().count("tea"), str)
    if TYPE_CHECKING:
        assert_type(hourly("monday"), str | None)
        leased(7)  # type: ignore[arg-type]  # must be refused
        leased(any_lease(), "monday")  # type: ignore[arg-type, call-arg]  # must be refused
        Stock().count()  # type: ignore[call-arg]  # must be refused
    assert_type(kept("monday", count=2), int)
    assert_type(maybe(), int | None)
    if TYPE_CHECKING:
        assert_type(or_else(), int | bool)
    assert_type(Shop().sell("tea"), str)


async def decorate_in_asyncio(client: holdfast.AsyncClient) -> None:
    @client.locked("a:{day}")
    async def kept(day: str) -> int:
        return len(day)

    @client.locked("a", busy="skip", timeout=1)
    async def maybe() -> int:
        return 1

    @client.locked("a", busy="skip", skipped="busy")
    async def or_else() -> int:
        return 1

    @client.locked("a", lease="lease")
    async def leased(lease: holdfast.AsyncLease, day: str) -> int:
        return lease.fence * len(day)

    class Stock:
        @client.locked("a", busy="skip", lease="lease")
        async def count(self, lease: holdfast.AsyncLease, item: str) -> str:
            return item

    assert_type(await leased("monday"), int)
    assert_type(await Stock().count("tea"), str | None)
    assert_type(await kept("monday"), int)
    assert_type(await maybe(), int | None)
    assert_type(await or_else(), int | str)


def refused_by_type_checkers(client: holdfast.Client) -> None:
    """Each ignore is needed, because mypy reports an unused one as an error."""
    client.lock("a", blocking_timeout=5)  # type: ignore[call-arg]
    client.lock(7)  # type: ignore[arg-type]
    client.lock("a", 30)  # type: ignore[call-arg, arg-type, unused-ignore]  # arg-type depends on the cache of mypy
    client.semaphore("a")  # type: ignore[call-arg]
    client.election("a", duration=5)  # type: ignore[call-arg]
    client.election("a").run(print, "a")  # type: ignore[call-arg]
    client.locked("a", busy="later")  # type: ignore[call-overload]
    client.locked("a", skipped=1)  # type: ignore[call-overload]
    client.locked(print)  # type: ignore[call-overload]  # must be refused
    client.lock("a").acquire(blocking_timeout=5)  # type: ignore[arg-type]  # must be refused
    client.lock("a").acquire(blocking="no")  # type: ignore[arg-type]  # must be refused
    client.lock_all(["a"]).acquire(sleep=1)  # type: ignore[arg-type]  # must be refused
    client.election("a").campaign(wait=1)  # type: ignore[arg-type]  # must be refused

    @client.locked("a:{day}")
    def kept(day: str) -> int:
        return len(day)

    kept(7)  # type: ignore[arg-type]


def test_the_examples_also_run() -> None:
    with holdfast.Client("memory://types") as client:
        use_threads(client)
        elect(client)
        decorate(client)

    async def main() -> None:
        async with holdfast.AsyncClient("memory://types") as client:
            await use_asyncio(client)
            await elect_in_asyncio(client)
            await decorate_in_asyncio(client)

    asyncio.run(main())
