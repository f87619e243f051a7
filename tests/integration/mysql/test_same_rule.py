"""The procedures inside the server decide as the one rule in core/tickets.py does: the memory backend runs that one."""

from __future__ import annotations

import random
import uuid

import pytest

from holdfast.core.ports import Backend
from holdfast.core.tickets import Granted, Ticket
from holdfast.errors import LimitConflict
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import opener, parse
from tests.support.mysql import shared

NAMES = ["a", "b"]
KINDS: list[tuple[int | None, bool]] = [(1, True), (1, True), (None, False), (2, False)]


def opened(url: str) -> Backend:
    address = parse(url)
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    return backend


def outcome(backend: Backend, ticket: Ticket, *, queue: bool) -> str:
    try:
        answer = run_sync(backend.enter(ticket, queue=queue, deadline=system.now() + 20))
    except LimitConflict as conflict:
        return f"limit {conflict.theirs}"
    return "in" if isinstance(answer, Granted) else "wait"


def seen(backend: Backend, name: str) -> tuple[list[str], list[str]]:
    info = run_sync(backend.inspect(name, deadline=system.now() + 20))
    return sorted(one.agent for one in info.holders), [one.agent for one in info.waiters]


@pytest.mark.parametrize("seed", range(6))
def test_the_same_steps_have_the_same_outcomes(seed: int) -> None:
    choose = random.Random(seed)  # noqa: S311 (to be had again)
    backends = [opened(f"memory://{uuid.uuid4().hex}"), opened(shared.fresh_url())]
    tickets: list[Ticket] = []
    history: list[str] = []

    for step in range(60):
        if tickets and choose.random() < 0.45:
            ticket = tickets.pop(choose.randrange(len(tickets)))
            answers = [str(run_sync(one.leave([ticket], deadline=system.now() + 20))) for one in backends]
            history.append(f"leave {ticket.agent}")
        else:
            if tickets and choose.random() < 0.5:
                ticket = choose.choice(tickets)
            else:
                limit, exclusive = choose.choice(KINDS)
                name = choose.choice(NAMES)
                ticket = Ticket(name, uuid.uuid4().hex, 60.0, limit, exclusive, f"ticket-{step}", "{}")
            queue = choose.random() < 0.8
            history.append(f"enter {ticket.agent} {ticket.limit} queue={queue}")
            answers = [outcome(one, ticket, queue=queue) for one in backends]
            if ticket not in tickets and (answers[0] == "in" or (answers[0] == "wait" and queue)):
                tickets.append(ticket)
        assert answers[0] == answers[1], history
        for name in NAMES:
            assert seen(backends[0], name) == seen(backends[1], name), history

    for one in backends:
        run_sync(one.close())
