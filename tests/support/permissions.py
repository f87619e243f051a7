"""The statements of docs/backends that give a user the permissions of a backend: tests run what the docs show."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.core.ports import AdoptsLeases, KeepsRecords, Record
from holdfast.core.tickets import Granted, Waiting
from holdfast.errors import HoldfastError
from holdfast.primitives import Primitive
from holdfast.runtimes.threads import run_sync
from holdfast_lab.conformance.verbs import PATIENCE, Verbs

_PAGES = Path(__file__).parents[2] / "docs" / "backends"
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def statements(page: str, heading: str, replaced: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the first code block under this heading in the section Permissions, with some words replaced.

    The permissions of a store are on its own page, or on a page that has only them.
    """
    text = _code_block(page, heading)
    for word, other in (replaced or {}).items():
        assert word in text, f"the statements of {page}, {heading} do not contain {word!r}"
        text = text.replace(word, other)
    return text.splitlines()


@functools.cache
def _code_block(page: str, heading: str) -> str:
    path = _PAGES / f"{page}-permissions.md"
    path = path if path.exists() else _PAGES / f"{page}.md"
    _, _, section = path.read_text().partition("\n## Permissions\n")
    section = section.partition("\n## ")[0]
    _, _, part = section.partition(f"\n### {heading}\n")
    block = _BLOCK.search(part.partition("\n### ")[0])
    assert block is not None, f"{path} has no statements under Permissions, {heading}"
    return block[1]


def use_everything(url: str, name: str = "a") -> None:
    """Run every operation of programs and operators on locks, registers and records that the store supports.

    `name` is the beginning of all names. A run that failed may have left some of them in use.

    Raises:
        HoldfastError: an operation failed, also if the error is only the result for one ticket.
    """
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(contextlib.closing(Verbs(url))) for _ in range(2))
        _use_one_lock(name, first, second)
        _use_shared_locks(name, first, second)
        _use_several_locks(name, first)
        first.advance_register(name, 1)
        first.advance_register(name, 2)
        first.read_registers(name, f"{name}-none")
        if isinstance(first.backend, KeepsRecords):
            for expected, nonce in (("", "one"), ("one", "two")):
                first.swap_record(name, expected, Record(nonce, "text"))
            first.swap_record(name, "two", None)
            first.read_record(name)


def _use_one_lock(name: str, first: Verbs, second: Verbs) -> None:
    holder, waiter, late = first.ticket(name), second.ticket(name), second.ticket(name)
    assert isinstance(first.try_acquire(holder), Granted)
    assert isinstance(second.try_acquire(waiter), Waiting)
    second.wait(waiter, 0.01)
    first.inspect(name)
    first.locks()
    _raise_error_of(first.renew(holder))
    _raise_error_of(first.release(holder))
    while not isinstance(granted := second.try_acquire(waiter), Granted):
        second.wait(waiter, 0.05)
    assert first.break_lock(name, granted.fence)
    late.unanswered = True  # its request may arrive after its release
    _raise_error_of(second.release(waiter, late))
    again = first.ticket(name)
    again.unanswered = True  # the same request was sent before, and got no answer
    assert isinstance(first.try_acquire(again), Granted)
    _raise_error_of(first.release(again))


def _use_shared_locks(name: str, first: Verbs, second: Verbs) -> None:
    lacks = first.backend.lacks
    if Primitive.RWLOCK not in lacks:
        reader, writer = first.ticket(f"{name}-r", exclusive=False, limit=None), second.ticket(f"{name}-r")
        permit = first.ticket(f"{name}-s", exclusive=False, limit=2)
        assert isinstance(first.try_acquire(reader), Granted)
        assert isinstance(first.try_acquire(permit), Granted)
        assert isinstance(second.try_acquire(writer), Waiting)
        first.inspect(f"{name}-r")
        _raise_error_of(first.renew(reader, permit))
        _raise_error_of(first.release(reader, permit))
        assert isinstance(second.try_acquire(writer), Granted)
        _raise_error_of(second.release(writer))
    if Primitive.OWNER not in lacks:
        ticket_a, ticket_b = first.ticket(f"{name}-o", owner="x"), second.ticket(f"{name}-o", owner="x")
        assert isinstance(first.try_acquire(ticket_a), Granted)
        assert isinstance(second.try_acquire(ticket_b), Granted)
        _raise_error_of(first.renew(ticket_a))
        _raise_error_of([*first.release(ticket_a), *second.release(ticket_b)])


def _use_several_locks(name: str, client: Verbs) -> None:
    tickets = [client.ticket(f"{name}-m"), client.ticket(f"{name}-n")]
    if Primitive.LOCK_ALL not in client.backend.lacks:
        assert all(isinstance(outcome, Granted) for outcome in client.try_acquire_all(tickets))
        _raise_error_of(client.renew(*tickets))
        _raise_error_of(client.release(*tickets))
    if isinstance(client.backend, AdoptsLeases):
        given, adopted = client.ticket(f"{name}-t"), client.ticket(f"{name}-t")
        assert isinstance(client.try_acquire(given), Granted)
        deadline = client.runtime.now() + PATIENCE
        assert isinstance(run_sync(client.backend.adopt(given.nonce, adopted, deadline=deadline)), Granted)
        _raise_error_of(client.release(adopted))


def _raise_error_of(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, HoldfastError):
            raise outcome
