"""The table that `holdfast backends` prints is true: what it says is there works, what a backend lacks is refused with
the reason, and with others that do have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast.url import SCHEMES, lacking
from tests.conformance.lab import Lab

# The smallest thing that each is good for, on a client of either shell: true if it worked.
FORMS: dict[Primitive, Callable[[Any], Any]] = {
    Primitive.LOCK: lambda client: client.lock("a").acquire(timeout=0),
    Primitive.RWLOCK: lambda client: client.rwlock("a").read().acquire(timeout=0),
    Primitive.SEMAPHORE: lambda client: client.semaphore("a", limit=2).acquire(timeout=0),
    Primitive.ELECTION: lambda client: client.election("a").campaign(timeout=0),
}


@pytest.mark.parametrize("primitive", FORMS, ids=lambda primitive: primitive.value)
async def test_a_primitive_works_or_is_refused_with_its_reason(lab: Lab, primitive: Primitive) -> None:
    actor = lab.actor()
    reason = actor.client._started().backend.lacks.get(primitive)

    if reason is None:
        assert await actor(FORMS[primitive])
        return

    with pytest.raises(holdfast.Unsupported) as refused:
        await actor(FORMS[primitive])
    assert reason in str(refused.value)
    assert refused.value.others
    for other in refused.value.others:
        scheme, _, method = other.partition(" with method=")
        assert primitive not in lacking(SCHEMES[scheme])[method], f"{other} has it neither"
    assert (await lab.state("a")).holders == ()


def test_every_primitive_is_tried() -> None:
    assert FORMS.keys() == set(Primitive)
