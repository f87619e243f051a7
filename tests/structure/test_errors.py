"""Errors keep their data when they are pickled, and have the expected base classes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import holdfast
from holdfast import errors

EXAMPLES: list[holdfast.HoldfastError] = [
    holdfast.AcquireTimeout(lock="a", waited=5.0, holder="web-3/812"),
    holdfast.LockLost(lock="a", fence=7, reason="its ttl is over"),
    holdfast.NotHeld(lock="a", reason="released already"),
    holdfast.WouldDeadlock(lock="a", fence=7, reason="not reentrant"),
    holdfast.StaleFence(resource="stock", fence=7, newest=8),
    holdfast.OnceFailed(key="charge:7", fence=7, error="ValueError: declined"),
    holdfast.OnceInterrupted(key="charge:7", fence=7, host="web-3", pid=812, since=1e9),
    holdfast.OnceMismatch(key="charge:7", fence=7),
    holdfast.BackendError(backend="redis://cache", problem="?"),
    holdfast.BackendUnavailable(backend="redis://cache", problem="connection refused"),
    holdfast.OutcomeUnknown(backend="redis://cache", problem="no answer in 5 s"),
    holdfast.AccessDenied(backend="redis://cache", problem="grant +evalsha"),
    holdfast.Unsupported(backend="memcached", what="order FIFO", others=("redis", "etcd")),
    holdfast.ThreadStartError(thread="holdfast-keeper", problem="can't start new thread"),
    holdfast.UsageError("another loop"),
    holdfast.ConfigurationError("ttl must be …"),
    holdfast.LimitConflict(lock="a", ours=5, theirs=None, holder="web-3/812"),
    holdfast.QuorumError(
        backend="redlock://a,b,c",
        needed=2,
        nodes=3,
        causes={"a": holdfast.BackendUnavailable(backend="a", problem="refused")},
    ),
    holdfast.NameConflict(lock="a", reason="its key is a list"),
    holdfast.HoldfastError("base"),
]


def all_errors() -> set[type]:
    members = (member for member in vars(errors).values() if isinstance(member, type))
    return {member for member in members if issubclass(member, holdfast.HoldfastError)}


def test_there_is_an_example_of_every_error() -> None:
    assert {type(example) for example in EXAMPLES} == all_errors()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: Any) -> None:
    error.add_note("seen in the test")

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error) != ""
    assert repr(vars(copy)) == repr(vars(error))


def test_errors_have_the_expected_base_classes() -> None:
    assert isinstance(EXAMPLES[0], TimeoutError)
    assert issubclass(holdfast.ConfigurationError, ValueError)
    assert not issubclass(holdfast.BackendUnavailable, TimeoutError)
    assert str(EXAMPLES[0]) == "lock 'a' not acquired in 5.0 s (held by web-3/812)"
