"""Hazard: a listing of locks keeps a shared server busy, because it reads the whole keyspace as fast as it can."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest

from holdfast.backends.redis.protocol.scanning import (
    FREE_COUNT,
    FREE_NAMES,
    NOTIFICATIONS_MAX,
    PAUSE_PER_ITEM,
    READ_COUNT,
    SCAN_COUNT,
    SHARE,
    Lister,
    Listing,
    Pacer,
    Work,
)
from holdfast.core.tickets import LockInfo, make_ticket_info
from holdfast.errors import BackendUnavailable, HoldfastError, OutcomeUnknown
from holdfast.runtimes.threads import ThreadRuntime, run_sync


class Clock(ThreadRuntime):
    """A runtime whose time passes only in sleeps and requests."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 100.0
        self.slept = 0.0

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept += seconds


class Changes:
    """The notifications of a server."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.error: HoldfastError | None = None
        self.is_closed = False

    async def keys(self) -> list[str]:
        if self.error is not None:
            raise self.error
        changed, self.changed = self.changed, []
        return changed

    def close(self) -> None:
        self.is_closed = True


class Store:
    """Two servers with keys. Each request takes `took` seconds."""

    def __init__(self, clock: Clock, keys: Sequence[str], took: float = 0.0005) -> None:
        self.clock = clock
        self.keys = keys
        self.in_use: set[str] = set()
        self.took = took
        self.sent: list[tuple[str, object]] = []
        self.is_down = False
        self.subscribed: list[Changes] = []

    async def subscribe_keyspace(self, server: str, pattern: str, *, deadline: float) -> Changes:
        self.subscribed.append(Changes())
        return self.subscribed[-1]

    def _answer(self, request: str, argument: object) -> None:
        self.clock.at += self.took
        self.sent.append((request, argument))
        if self.is_down:
            raise BackendUnavailable(backend="test", problem="down")

    async def servers(self, *, deadline: float) -> Sequence[str]:
        return ["one", "two"]

    async def key_count(self, server: str, *, deadline: float) -> int:
        self._answer("DBSIZE", server)
        return len(self.keys)

    async def scan(self, server: str, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, Sequence[str]]:
        self._answer("SCAN", (server, int(cursor)))
        end = int(cursor) + SCAN_COUNT
        return b"0" if end >= len(self.keys) else str(end).encode(), self.keys[int(cursor) : end]

    async def read(self, names: Sequence[str], deadline: float) -> Callable[[], list[LockInfo]]:
        self._answer("READ", tuple(names))
        return lambda: [LockInfo(name, (HOLDER,), ()) for name in names if name in self.in_use]

    def requests(self, kind: str) -> list[object]:
        return [argument for request, argument in self.sent if request == kind]


HOLDER = make_ticket_info(info="", fence=1, agent="", since=0.0, remaining=1.0, exclusive=True, limit=1)

Open = Callable[..., tuple[Store, Listing[str]]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(clock: Clock) -> Open:
    def open_one(keys: Sequence[str], *, took: float = 0.0005) -> tuple[Store, Listing[str]]:
        store = Store(clock, keys, took)
        return store, Listing(Lister(store, clock, "app:", store.read), "", 5.0)

    return open_one


def test_a_search_sends_small_requests_and_uses_5_percent_of_the_servers_time(clock: Clock, open_store: Open) -> None:
    store, listing = open_store([f"app:{number}" for number in range(1000)])
    began = clock.at

    assert run_sync(listing.search(1e9))
    run_sync(listing.read())

    assert SCAN_COUNT <= 200
    assert READ_COUNT <= 10
    assert len(store.requests("SCAN")) == 2 * 1000 / SCAN_COUNT
    busy = store.took * len(store.sent)
    # There is no pause after the last request, unless another one follows.
    assert busy <= SHARE * (clock.at - began + store.took * (1 / SHARE - 1)) + 1e-9
    assert max(len(names) for names in store.requests("READ") if isinstance(names, tuple)) == READ_COUNT


def test_two_listings_of_one_client_share_its_part_of_the_time(clock: Clock) -> None:
    store = Store(clock, [f"app:{number}" for number in range(1000)])
    lister = Lister(store, clock, "app:", store.read)
    began = clock.at

    for _ in range(3):
        listing = Listing(lister, "", 5.0)
        run_sync(listing.search(1e9))
        run_sync(listing.read())

    assert store.took * (len(store.sent) - 1) <= SHARE * (clock.at - began)


def test_a_slow_network_does_not_count_as_work_of_the_server(clock: Clock, open_store: Open) -> None:
    store, listing = open_store(["app:a"] * 500, took=0.5)

    run_sync(listing.search(1e9))

    assert clock.slept <= PAUSE_PER_ITEM * SCAN_COUNT * len(store.sent) + 1e-9


def test_a_reply_about_many_tickets_is_followed_by_a_longer_pause(clock: Clock) -> None:
    async def request() -> None:
        clock.at += 0.5

    few, many = Pacer(clock), Pacer(clock)
    run_sync(few.run(request, Work(lambda _: 100)))
    assert few.free_at - clock.at == pytest.approx(0.05)

    run_sync(many.run(request, Work(lambda _: 20_000)))
    assert many.free_at - clock.at == pytest.approx(19 * 0.5)


def test_the_pause_after_a_late_reply_depends_on_the_time_that_other_replies_took(clock: Clock) -> None:
    async def request(took: float) -> None:
        clock.at += took

    pacer, work = Pacer(clock), Work[None](lambda _: 100)
    pauses = []
    for took in (0.001, 0.01, 0.002):
        run_sync(pacer.run(functools.partial(request, took), work))
        pauses.append(pacer.free_at - clock.at)

    assert pauses == pytest.approx([0.019, 0.019, 0.019])


def test_a_search_continues_where_it_stopped(clock: Clock, open_store: Open) -> None:
    store, listing = open_store([f"app:{number}" for number in range(1000)])

    while not run_sync(listing.search(0.02)):
        pass

    scanned = store.requests("SCAN")
    assert len(scanned) == len(set(scanned)) == 2 * 1000 / SCAN_COUNT
    assert (listing.keys_searched, listing.keys_total) == (2000, 2000)


def test_a_search_begins_again_after_an_error(open_store: Open) -> None:
    store, listing = open_store([f"app:{number}" for number in range(500)])
    store.in_use = {"499"}
    run_sync(listing.search(0.03))
    store.is_down = True
    with pytest.raises(BackendUnavailable):
        run_sync(listing.search(1e9))
    store.is_down = False
    store.sent.clear()

    run_sync(listing.search(1e9))

    assert store.requests("SCAN")[0] == ("one", 0)
    assert [info.name for info in run_sync(listing.read())] == ["499"]


def test_a_lock_that_was_found_is_read_again_without_a_search(open_store: Open) -> None:
    store, listing = open_store([f"app:{number}" for number in range(200)])
    store.in_use = {"7"}
    run_sync(listing.search(1e9))
    assert [info.name for info in run_sync(listing.read())] == ["7"]
    store.sent.clear()

    store.in_use = set()
    assert run_sync(listing.read()) == []
    store.in_use = {"7"}
    assert [info.name for info in run_sync(listing.read())] == ["7"]

    assert store.sent == [("READ", ("7",))] * 2


def test_the_number_of_free_locks_that_are_read_again_is_bounded(open_store: Open) -> None:
    names = [str(number) for number in range(FREE_NAMES + 50)]
    store, listing = open_store([f"app:{name}" for name in names])
    store.in_use = set(names)
    run_sync(listing.search(1e9))
    run_sync(listing.read())
    store.in_use = set()
    run_sync(listing.read())
    store.sent.clear()

    run_sync(listing.read())

    assert len(store.sent) == 2 * FREE_COUNT / READ_COUNT
    for _ in range(FREE_NAMES // FREE_COUNT):
        run_sync(listing.read())
    read = {name for chunk in store.requests("READ") if isinstance(chunk, tuple) for name in chunk}
    assert len(read) == FREE_NAMES  # each in turn


def test_after_each_request_the_caller_can_end_a_search(open_store: Open) -> None:
    store, listing = open_store([f"app:{number}" for number in range(1000)])

    def stop() -> None:
        raise KeyboardInterrupt

    listing.on_step = stop
    with pytest.raises(KeyboardInterrupt):
        run_sync(listing.search(1e9))

    assert len(store.requests("SCAN")) == 1


def test_a_lock_that_a_server_reports_is_read_before_a_search_has_found_it(open_store: Open) -> None:
    store, listing = open_store([])
    listing.follows = True
    run_sync(listing.search(1e9))
    assert run_sync(listing.read()) == []

    store.in_use = {"new"}
    store.subscribed[1].changed = ["app:new", "app:new{app:new}:leases"]

    assert [info.name for info in run_sync(listing.read())] == ["new"]
    listing.close()
    assert [subscription.is_closed for subscription in store.subscribed] == [True, True]


def test_only_a_repeated_listing_subscribes(open_store: Open) -> None:
    store, listing = open_store([])

    run_sync(listing.search(1e9))

    assert store.subscribed == []


def test_a_subscription_ends_when_the_server_reports_too_many_changes(open_store: Open) -> None:
    store, listing = open_store([])
    listing.follows = True
    run_sync(listing.search(1e9))
    store.subscribed[0].changed = ["app:a"] * (NOTIFICATIONS_MAX + 1)

    run_sync(listing.read())
    run_sync(listing.search(1e9))

    assert store.subscribed[0].is_closed
    assert len(store.subscribed) == 2, "no new subscription"


@pytest.mark.parametrize(
    ("error", "subscriptions"),
    [
        (OutcomeUnknown(backend="test", problem="the connection has ended"), 3),
        (BackendUnavailable(backend="test", problem="NOPERM"), 2),
    ],
)
def test_a_subscription_that_has_ended_is_renewed_unless_it_was_refused(
    open_store: Open, error: HoldfastError, subscriptions: int
) -> None:
    store, listing = open_store([])
    listing.follows = True
    run_sync(listing.search(1e9))
    store.subscribed[0].error = error

    run_sync(listing.read())
    run_sync(listing.search(1e9))

    assert store.subscribed[0].is_closed
    assert len(store.subscribed) == subscriptions
