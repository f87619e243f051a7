"""The table that `holdfast backends` prints is true: a primitive of a backend works; a primitive that it lacks is
refused with the reason and with the backends that have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast.url import lacks_of, scheme_of
from holdfast_lab.conformance.lab import Lab

Step = Callable[[Any], Any]  # on a client of either shell: true if it worked


def _renewed(client: Any) -> Any:
    """Acquire a lock and renew it with another ttl; if that is refused, release it."""
    lock = client.lock("a")
    if not isinstance(client, holdfast.AsyncClient):
        with lock as lease:
            return lease.renew(ttl=40) or lease.ttl == 40

    async def awaited() -> bool:
        async with lock as lease:
            await lease.renew(ttl=40)
            return bool(lease.ttl == 40)

    return awaited()


def _transferred(client: Any) -> Any:
    """Transfer a lease to the same client; if that is refused, release it."""
    lock = client.lock("a")
    if not isinstance(client, holdfast.AsyncClient):
        with lock as lease:
            text = lease.transfer()
        return client.adopt(text)

    async def awaited() -> Any:
        async with lock as lease:
            text = await lease.transfer()
        return await client.adopt(text)

    return awaited()


# The shortest uses of each primitive. A backend that lacks it refuses each of them.
FORMS: dict[Primitive, tuple[Step, ...]] = {
    Primitive.LOCK: (lambda client: client.lock("a").acquire(timeout=0),),
    Primitive.RWLOCK: (lambda client: client.rwlock("a").read().acquire(timeout=0),),
    Primitive.SEMAPHORE: (lambda client: client.semaphore("a", limit=2).acquire(timeout=0),),
    Primitive.LOCK_ALL: (lambda client: client.lock_all(["a", "b"]).acquire(timeout=0),),
    Primitive.ELECTION: (lambda client: client.election("a").campaign(timeout=0),),
    Primitive.ONCE_PER: (lambda client: client.once_per("52w", name="a", skipped=False)(_job(client))(),),
    Primitive.ONCE: (lambda client: client.once("a").run(_job(client)),),
    Primitive.LOCK_DELAY: (lambda client: client.lock("a", lock_delay=1).acquire(timeout=0),),
    Primitive.REVOKE: (
        lambda client: client.lock("a", revocable=True).acquire(timeout=0),
        lambda client: client.request_revoke("a"),
    ),
    Primitive.OWNER: (lambda client: client.lock("a", owner="job").acquire(timeout=0),),
    Primitive.DETECT_DEADLOCKS: (lambda client: client.lock("a", detect_deadlocks=True).acquire(timeout=0),),
    Primitive.RENEW_TTL: (_renewed,),
    Primitive.TRANSFER: (_transferred,),
    Primitive.MIN_HOLD: (lambda client: client.lock("a", min_hold=1).acquire(timeout=0),),
}


def _job(client: Any) -> Callable[[], Any]:
    async def awaited() -> bool:
        return True

    return awaited if isinstance(client, holdfast.AsyncClient) else lambda: True


@pytest.mark.parametrize("primitive", Primitive, ids=lambda primitive: primitive.value)
async def test_a_primitive_works_or_is_refused_with_its_reason(lab: Lab, primitive: Primitive) -> None:
    actor = lab.actor()
    reason = lab.lacks(primitive)
    assert actor.client._started().backend.lacks.get(primitive) == reason

    for step in FORMS[primitive]:
        if reason is None:
            assert await actor(step)
            continue
        with pytest.raises(holdfast.Unsupported) as refused:
            await actor(step)
        assert reason in str(refused.value)
        assert refused.value.others
        for other in refused.value.others:
            assert other in str(refused.value)
            assert _has(other, primitive), f"{other} has it neither"
        assert (await lab.state("a")).holders == ()


def _has(named: str, primitive: Primitive) -> bool:
    """Whether a backend has it, by its name in errors: redis://, or redis://…?method=setnx."""
    scheme, _, options = named.partition("://")
    methods = lacks_of(scheme_of(scheme))
    return primitive not in methods[options.partition("method=")[2] or next(iter(methods))]
