"""Hazard: the procedures on the server differ from the rule in core/tickets.py, which the memory backend implements."""

from __future__ import annotations

import random
import uuid

import pytest

from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim, Granted
from holdfast.errors import LimitConflict
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import opener, parse
from holdfast_lab.sim.mutants.base import replaced
from tests.support.mysql import shared

NAMES = ["a", "b"]
KINDS: list[tuple[int | None, bool]] = [(1, True), (1, True), (None, False), (2, False)]


@pytest.fixture(autouse=True)
def _no_waiter_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a waiter would expire between two steps, on one of the backends first."""
    for constant in ("memory.protocol.queue.WAITER_LEASE", "memory.protocol.queue.WOKEN_LEASE"):
        monkeypatch.setattr(f"holdfast.backends.{constant}", 1000.0)
    for constant in ("WAITER_LEASE", "WOKEN"):
        monkeypatch.setattr(f"holdfast.backends.mysql.sql.{constant}", 1000.0)


def open_backend(url: str) -> Backend:
    address = parse(url)
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    return backend


def outcome(backend: Backend, ticket: Claim, *, queue: bool) -> str:
    try:
        answer = run_sync(backend.try_acquire(ticket, queue=queue, deadline=system.now() + 20))
    except LimitConflict as conflict:
        return f"limit {conflict.theirs}"
    return "in" if isinstance(answer, Granted) else "wait"


def holders_and_waiters(backend: Backend, name: str) -> tuple[list[list[str]], list[str]]:
    """The holders, grouped by fence; and the waiters, in order."""
    info = run_sync(backend.inspect(name, deadline=system.now() + 20))
    groups: dict[int | None, list[str]] = {}
    for holder in info.holders:
        groups.setdefault(holder.fence, []).append(holder.agent)
    return sorted(sorted(group) for group in groups.values()), [waiter.agent for waiter in info.waiters]


def outcomes(backend: Backend, tickets: list[Claim]) -> list[str]:
    """The outcomes of several at once, as the engine acquires them."""
    results: list[str] = []
    while len(results) < len(tickets) and "wait" not in results:
        answers = run_sync(backend.try_acquire_all(tickets[len(results) :], deadline=system.now() + 20))
        results += ["in" if isinstance(answer, Granted) else "wait" for answer in answers]
    return results


def break_lease(backend: Backend, ticket: Claim) -> bool:
    """Break the lease of this ticket, and of all that share it."""
    info = run_sync(backend.inspect(ticket.name, deadline=system.now() + 20))
    fence = next((holder.fence for holder in info.holders if holder.agent == ticket.agent), None)
    return fence is not None and run_sync(backend.break_lock(ticket.name, fence, deadline=system.now() + 20))


@pytest.mark.parametrize("seed", range(6))
def test_mysql_grants_as_the_memory_backend_does(seed: int) -> None:
    choose = random.Random(seed)  # noqa: S311 (it has to be repeatable)
    backends = [open_backend(f"memory://{uuid.uuid4().hex}"), open_backend(shared.fresh_url())]
    tickets: list[Claim] = []
    history: list[str] = []

    for step in range(60):
        if tickets and choose.random() < 0.45:
            ticket = tickets.pop(choose.randrange(len(tickets)))
            answers = [str(run_sync(backend.release([ticket], deadline=system.now() + 20))) for backend in backends]
            history.append(f"release {ticket.agent}")
        else:
            if tickets and choose.random() < 0.5:
                ticket = choose.choice(tickets)
            else:
                limit, exclusive = choose.choice(KINDS)
                name = choose.choice(NAMES)
                ticket = Claim(name, uuid.uuid4().hex, 1000.0, limit, exclusive, f"ticket-{step}", "{}")
            queue = choose.random() < 0.8
            history.append(f"try_acquire {ticket.agent} {ticket.limit} queue={queue}")
            answers = [outcome(backend, ticket, queue=queue) for backend in backends]
            if ticket not in tickets and (answers[0] == "in" or (answers[0] == "wait" and queue)):
                tickets.append(ticket)
        assert answers[0] == answers[1], history
        for name in NAMES:
            assert holders_and_waiters(backends[0], name) == holders_and_waiters(backends[1], name), history

    for backend in backends:
        run_sync(backend.close())


@pytest.mark.parametrize("seed", range(6))
def test_mysql_grants_as_the_memory_backend_does_with_owners_and_several_locks(seed: int) -> None:
    choose = random.Random(seed)  # noqa: S311 (it has to be repeatable)
    backends = [open_backend(f"memory://{uuid.uuid4().hex}"), open_backend(shared.fresh_url())]
    names = ["a", "b", "c"]
    tickets: list[Claim] = []
    history: list[str] = []
    together = 0

    def new(name: str) -> Claim:
        limit, exclusive = choose.choice([*KINDS, (1, True), (1, True)])
        owner = choose.choice(["", "ann", "ann", "ann", "Ann"]) if exclusive else ""
        agent = f"ticket-{len(history)}-{name}"
        return Claim(name, uuid.uuid4().hex, 1000.0, limit, exclusive, agent, "{}", owner=owner)

    for _ in range(80):
        step = choose.choices(["acquire", "again", "acquire all", "release", "break"], weights=[4, 2, 2, 5, 0.7])[0]
        some = choose.sample(tickets, k=min(len(tickets), choose.randrange(1, 4)))
        answers: list[object] = []
        if step == "acquire all":
            wanted = sorted(choose.sample(names, k=choose.randrange(1, 4)))
            owner = choose.choice(["", "ann"])
            all_of_them = [replaced(new(name), limit=1, exclusive=True, owner=owner) for name in wanted]
            answers = [outcomes(backend, all_of_them) for backend in backends]
            tickets += all_of_them  # a release is harmless for a ticket that was not granted
        elif step == "release" and some:
            answers = [run_sync(backend.release(some, deadline=system.now() + 20)) for backend in backends]
            tickets = [ticket for ticket in tickets if ticket not in some]
        elif step == "break" and some:
            answers = [break_lease(backend, some[0]) for backend in backends]
        else:
            ticket = some[0] if step == "again" and some else new(choose.choice(names))
            queue = choose.random() < 0.8
            answers = [outcome(backend, ticket, queue=queue) for backend in backends]
            tickets = [*(other for other in tickets if other != ticket), ticket]
        history.append(f"{step} {some}: {answers}")
        assert answers[0] == answers[1], history
        for name in names:
            state = holders_and_waiters(backends[0], name)
            assert state == holders_and_waiters(backends[1], name), history
            together += any(len(group) > 1 for group in state[0])

    assert together > 0, "tickets of one owner have held a lock together"
    for backend in backends:
        run_sync(backend.close())
