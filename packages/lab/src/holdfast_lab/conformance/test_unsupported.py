"""A backend refuses a primitive that it lacks, with the reason, and names the backends that have it."""

from __future__ import annotations

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import Lab


async def test_a_backend_without_readers_and_semaphores_raises_unsupported(lab: Lab, case: Case) -> None:
    if case.shares:
        pytest.skip(f"{case.name} has both")
    actor = lab.actor()

    with pytest.raises(holdfast.Unsupported, match=r"these can: .*sqlite://"):
        await actor(lambda client: client.rwlock("a").read().acquire(timeout=0))
    with pytest.raises(holdfast.Unsupported, match=r"these can: .*sqlite://"):
        await actor(lambda client: client.semaphore("a", limit=2).acquire())

    assert await actor(lambda client: client.rwlock("a").write().acquire(timeout=0)), "a writer is alone"
