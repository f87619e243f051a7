"""The APIs for threads and for asyncio have the same names, arguments and docstrings; only `await` differs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import holdfast

PAIRS = [
    (holdfast.Client, holdfast.AsyncClient),
    (holdfast.Lock, holdfast.AsyncLock),
    (holdfast.Semaphore, holdfast.AsyncSemaphore),
    (holdfast.RWLock, holdfast.AsyncRWLock),
    (holdfast.Election, holdfast.AsyncElection),
    (holdfast.Lease, holdfast.AsyncLease),
    (holdfast.LockAll, holdfast.AsyncLockAll),
    (holdfast.LeaseAll, holdfast.AsyncLeaseAll),
    (holdfast.Once, holdfast.AsyncOnce),
]
# Methods without I/O are not awaited.
LOCAL: dict[str, set[str]] = {
    "Client": {
        "lock",
        "lock_all",
        "locked",
        "election",
        "once",
        "once_per",
        "rwlock",
        "semaphore",
        "stats",
        "subscribe",
    },
    "Lock": set(),
    "Semaphore": set(),
    "RWLock": {"read", "write"},
    "Election": {"observe", "on_change", "stop"},
    "Lease": {"check"},
    "LockAll": set(),
    "LeaseAll": {"check"},
    "Once": set(),
}
# Plain functions that return a coroutine, because the lease belongs to the calling task.
NOTES_ITS_CALLER = {"acquire", "campaign"}

pytestmark = pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda shell: shell.__name__)


def public(shell: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(shell) if not name.startswith("_")}


def test_both_apis_have_the_same_names(sync: type, aio: type) -> None:
    assert public(sync).keys() == public(aio).keys()
    assert ("__enter__" in dir(sync)) == ("__aenter__" in dir(aio))


def test_both_apis_have_the_same_arguments(sync: type, aio: type) -> None:
    for name, member in public(sync).items():
        if callable(member):
            ours = inspect.signature(member).parameters
            theirs = inspect.signature(getattr(aio, name)).parameters
            assert [(our.name, our.kind, our.default) for our in ours.values()] == [
                (their.name, their.kind, their.default) for their in theirs.values()
            ], name


def test_both_apis_have_the_same_docstrings(sync: type, aio: type) -> None:
    for name, member in public(sync).items():
        docstring = inspect.getdoc(getattr(aio, name)) or ""
        assert docstring, f"{aio.__name__}.{name} has no docstring"
        assert docstring.replace("from any task", "from any thread") == inspect.getdoc(member), name


def test_only_methods_that_contact_the_server_are_awaited(sync: type, aio: type) -> None:
    for name, member in public(aio).items():
        if callable(member):
            is_awaited = inspect.iscoroutinefunction(member) or name in NOTES_ITS_CALLER
            assert is_awaited == (name not in LOCAL[sync.__name__]), name
            assert not inspect.iscoroutinefunction(public(sync)[name])
