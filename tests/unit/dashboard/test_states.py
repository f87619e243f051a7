"""Hazard: a page that has missed a state, or connects again, shows a lock that is free or omits one that is held."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.backends.memory.protocol.guarantees import GUARANTEES
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.dashboard.states import HOLDERS_MAX, WAITERS_MAX, State, StateMaker, Watched
from holdfast.errors import BackendUnavailable
from holdfast.monitor import Snapshot, Tracker

NOW = 1_000_000.0


def ticket(
    pid: int, fence: int | None = None, *, since: float = 0.0, remaining: float = 10.0, **fields: Any
) -> TicketInfo:
    defaults: dict[str, Any] = {"exclusive": True, "limit": 1, "meta": {}}
    return TicketInfo(fence, "web-3", pid, "main", "shop", since, remaining, **(defaults | fields))


def held(name: str, fence: int = 1, *, remaining: float = 10.0) -> LockInfo:
    return LockInfo(name, (ticket(1, fence, remaining=remaining),), ())


class Store:
    """Reads of a store, and the states that are made of them."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.maker = StateMaker()

    def read(self, *locks: LockInfo, at: float = NOW, watched: Sequence[str] = (), searched: float = 1.0) -> State:
        changes = self.tracker.update(locks, at)
        statuses = {status.name: status for status in self.tracker.locks}
        pages = [Watched(name, statuses.get(name), None, self.tracker.history(name)) for name in watched]
        snapshot = Snapshot(
            at, at, self.tracker.locks, tuple(changes), self.tracker.graph, None, searched, 0.1, GUARANTEES, ()
        )
        return self.maker.next(snapshot, pages)


class Page:
    """The table as a page keeps it: it applies messages in the order of static/locks.js."""

    def __init__(self) -> None:
        self.locks: dict[str, Any] = {}
        self.version: int | None = None

    def receive(self, state: State) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(state.message(state.table(self.version)))
        if message.get("full"):
            self.locks.clear()
        self.locks |= {lock["name"]: lock for lock in message.get("locks", ())}
        for name in message.get("gone", ()):
            self.locks.pop(name, None)
        self.version = state.version
        return message


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_new_page_gets_all_locks(store: Store) -> None:
    page = Page()
    store.read(held("a"))

    message = page.receive(store.read(held("a"), held("b")))

    assert message["full"] is True
    assert page.locks.keys() == {"a", "b"}


def test_a_page_gets_only_the_locks_that_have_changed(store: Store) -> None:
    page = Page()
    page.receive(store.read(held("a"), held("b")))

    message = page.receive(store.read(held("a"), held("b", fence=2)))

    assert [lock["name"] for lock in message["locks"]] == ["b"]
    assert page.locks["b"]["holders"][0]["fence"] == "2"
    assert "full" not in message


def test_a_state_without_a_change_has_no_fields_for_the_table(store: Store) -> None:
    before = store.read(held("a"))

    assert store.read(held("a")).table(before.version) == {}


def test_a_deadline_that_differs_a_little_from_poll_to_poll_is_no_change(store: Store) -> None:
    before = store.read(held("a", remaining=10.0), at=NOW)
    same = store.read(held("a", remaining=9.2), at=NOW + 1)  # 0.2 s later than expected
    renewed = store.read(held("a", remaining=10.0), at=NOW + 2)

    assert same.table(before.version) == {}
    [lock] = json.loads(renewed.table(same.version)["locks"])
    assert lock["holders"][0]["expires_at"] == NOW + 12


def test_a_lock_that_is_free_is_reported_as_gone(store: Store) -> None:
    page = Page()
    page.receive(store.read(held("a"), held("b")))

    page.receive(store.read(held("b")))

    assert page.locks.keys() == {"b"}


def test_a_lock_that_was_free_in_a_state_that_the_page_has_missed_is_shown(store: Store) -> None:
    page = Page()
    page.receive(store.read(held("a")))
    store.read()

    page.receive(store.read(held("a", fence=2)))

    assert page.locks["a"]["holders"][0]["fence"] == "2"


def test_a_page_that_has_missed_more_names_than_are_kept_gets_all_locks(store: Store) -> None:
    pages = [Page(), Page()]
    pages[0].receive(store.read(*(held(f"order:{number}") for number in range(5001)), held("last")))
    pages[1].receive(store.read(held("last")))
    state = store.read()

    messages = [page.receive(state) for page in pages]

    assert [message.get("full", False) for message in messages] == [True, False]
    assert [page.locks for page in pages] == [{}, {}]


def test_a_page_with_a_version_of_the_future_gets_all_locks(store: Store) -> None:
    page = Page()
    page.version = 7

    assert page.receive(store.read(held("a")))["full"] is True


def test_a_change_is_sent_once_with_the_time_that_the_lease_lasted(store: Store) -> None:
    holder, waiter = ticket(1, 1, since=NOW - 5), ticket(2, since=NOW)
    page = Page()
    page.receive(store.read(LockInfo("a", (holder,), (waiter,))))

    message = page.receive(store.read(LockInfo("a", (ticket(2, 2, since=NOW + 1),), ()), at=NOW + 1))
    later = page.receive(store.read(LockInfo("a", (ticket(2, 2, since=NOW + 1),), ()), at=NOW + 2))

    assert [(change["kind"], change["pid"], change["seconds"]) for change in message["changes"]] == [
        ("released", 1, 6.0),
        ("acquired", 2, None),
    ]
    assert "changes" not in later


def test_the_table_limits_the_holders_of_a_semaphore_and_counts_all(store: Store) -> None:
    permits = tuple(ticket(pid, pid, exclusive=False, limit=9) for pid in range(1, 9))

    [row] = store.read(LockInfo("pool", permits, (ticket(9, exclusive=False, limit=9, since=NOW - 3),))).rows.values()

    assert (row.fields["kind"], row.fields["limit"], row.fields["holder_count"]) == ("semaphore", 9, 8)
    assert len(row.fields["holders"]) == HOLDERS_MAX
    assert (row.fields["waiters"], row.fields["waiting_since"]) == (1, NOW - 3)


def test_unknown_times_and_leases_without_an_end_are_null(store: Store) -> None:
    state = store.read(LockInfo("a", (ticket(1, 1, remaining=math.inf),), ()), watched=["a"])

    for text in (state.rows["a"].text, state.watched["a"]):
        fields = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        [holder] = fields["holders"]
        assert (holder["since"], holder["expires_at"], holder["ttl"]) == (None, None, None)


def test_fences_and_large_numbers_of_meta_are_texts_because_javascript_rounds_numbers(store: Store) -> None:
    fence = 2**60 + 1
    info = LockInfo("a", (ticket(1, fence, meta={"build": fence, "zone": "a"}),), ())

    [holder] = json.loads(store.read(info, watched=["a"]).watched["a"])["holders"]

    assert holder["fence"] == str(fence)
    assert holder["meta"] == [["build", str(fence)], ["zone", "a"]]


def test_the_page_of_a_lock_has_roles_a_limited_queue_and_past_leases(store: Store) -> None:
    reader: dict[str, Any] = {"exclusive": False, "limit": None}
    store.read(held("a", fence=1))
    queue = (ticket(3), *(ticket(pid, **reader) for pid in range(4, 4 + WAITERS_MAX)))

    page = json.loads(store.read(LockInfo("a", (ticket(2, 2, **reader),), queue), watched=["a"]).watched["a"])

    assert (page["kind"], page["holders"][0]["role"]) == ("read-write", "reader")
    assert [waiter["role"] for waiter in page["waiters"][:2]] == ["writer", "reader"]
    assert (len(page["waiters"]), page["waiter_count"]) == (WAITERS_MAX, WAITERS_MAX + 1)
    assert [(past["fence"], past["until"]) for past in page["past"]] == [("1", NOW)]


def test_the_page_of_a_free_lock_is_empty(store: Store) -> None:
    page = json.loads(store.read(watched=["a"]).watched["a"])

    assert (page["name"], page["holders"], page["waiters"]) == ("a", [], [])


def test_the_locks_of_a_deadlock_are_marked(store: Store) -> None:
    infos = [
        LockInfo("a", (ticket(1, 1, caller="x"),), (ticket(2, caller="y"),)),
        LockInfo("b", (ticket(2, 2, caller="y"),), (ticket(1, caller="x"),)),
        held("c"),
    ]
    store.read(*infos)  # a deadlock is reported when two reads have found it

    state = store.read(*infos)

    assert {name: row.fields["in_cycle"] for name, row in state.rows.items()} == {"a": True, "b": True, "c": False}
    assert state.status["cycles"] == 1


def test_a_search_that_is_not_complete_is_reported(store: Store) -> None:
    assert store.read(searched=0.25).status["search"] == "searching, 25%"
    assert store.read().status["search"] is None


def test_a_failed_poll_keeps_the_last_locks_and_reports_the_reason(store: Store) -> None:
    page = Page()
    page.receive(store.read(held("a")))

    message = page.receive(store.maker.failed("a bug"))

    assert message["unavailable"] == "a bug"
    assert page.locks.keys() == {"a"}


def test_a_first_poll_that_fails_gives_an_empty_state() -> None:
    page = Page()

    message = page.receive(StateMaker().failed(str(BackendUnavailable(backend="redis", problem="closed"))))

    assert message["unavailable"] == "redis: closed"
    assert page.locks == {}


def test_two_monitors_have_different_epochs() -> None:
    assert Store().read().epoch != Store().read().epoch
