"""Elections: two leaders at once, a term that does not grow, an observer that receives no leader or an older one, a
leader that is not notified of its loss, a loop that does not continue after a loss.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import Actor, Lab, until

OFTEN = 0.02  # seconds between two polls
SHORT = 0.4  # seconds: a ttl that a busy machine can still renew in time


class Observer:
    """Collects the items of `observe` in an actor of its own, until the client is closed."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.seen: list[holdfast.Leader | None] = []
        self.actor = lab.actor()
        self.task = lab.start(self.actor, lambda client: self._gather(client.election(name).observe(every=OFTEN)))

    @property
    def terms(self) -> list[int | None]:
        return [leader and leader.term for leader in self.seen]

    async def until_seen(self, term: int | None) -> None:
        async def is_last() -> bool:
            return self.terms[-1:] == [term]

        await until(is_last, f"the observer sees {term}, after {self.terms}")

    def _gather(self, observation: Any) -> Any:
        if hasattr(observation, "__aiter__"):
            return self._gather_in_task(observation)
        for leader in observation:
            self.seen.append(leader)
        return "over"

    async def _gather_in_task(self, observation: Any) -> str:
        async for leader in observation:
            self.seen.append(leader)
        return "over"


async def test_there_is_one_leader_at_a_time_and_terms_grow(lab: Lab) -> None:
    candidate, other = lab.actor(), lab.actor()
    first = await candidate(lambda client: client.election("a").campaign())

    assert await other(lambda client: client.election("a").campaign(timeout=0)) is None
    await candidate(lambda _: first.release())
    second = await other(lambda client: client.election("a").campaign(timeout=0))

    assert second.fence > first.fence
    assert await candidate(lambda client: client.lock("a").acquire(timeout=0)) is None, "it is the lock of that name"
    await other(lambda _: second.release())


async def test_every_client_can_read_the_leader(lab: Lab, case: Case) -> None:
    candidate, other = lab.actor(), lab.actor()
    election = candidate.client.election("a", meta={"zone": 7})
    assert await other(lambda client: client.election("a").leader()) is None

    lease = await candidate(lambda _: election.campaign())
    leader = await other(lambda client: client.election("a").leader())

    assert leader.term == (await candidate(lambda _: election.leader())).term
    assert leader.term == lease.fence
    if case.shows_who:
        assert str(leader) == f"{os.uname().nodename}/{os.getpid()}"
        assert leader.meta == {"zone": 7}
    await candidate(lambda _: election.resign())
    assert await other(lambda client: client.election("a").leader()) is None


async def test_resigning_hands_over_to_a_waiter(lab: Lab) -> None:
    candidate, other = lab.actor(), lab.actor()
    election = candidate.client.election("a")
    first = await candidate(lambda _: election.campaign())
    waiting = lab.start(other, lambda client: client.election("a").campaign(timeout=30))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0], "it waits while there is a leader"

    await candidate(lambda _: election.resign())

    second = await waiting
    assert second.fence > first.fence
    with pytest.raises(holdfast.NotHeld):
        await candidate(lambda _: election.resign())
    await other(lambda _: second.release())


async def test_an_observer_yields_the_present_leader_and_then_every_change(lab: Lab, case: Case) -> None:
    candidate = lab.actor()
    before = await candidate(lambda client: client.election("a").campaign())
    observer = Observer(lab, "a")
    await observer.until_seen(before.fence)

    await candidate(lambda _: before.release())
    await observer.until_seen(None)
    after = await candidate(lambda client: client.election("a", meta={"n": 2}).campaign())
    await observer.until_seen(after.fence)

    assert observer.terms[0] == before.fence
    assert _without_provisional(observer.terms, before.fence, after.fence) == [before.fence, None, after.fence]
    assert observer.seen[-1] is not None
    assert observer.seen[-1].meta == ({"n": 2} if case.shows_who else {})
    await candidate(lambda _: after.release())


async def test_an_observer_yields_none_first_when_there_is_no_leader(lab: Lab) -> None:
    observer = Observer(lab, "a")

    await observer.until_seen(None)

    assert observer.terms == [None]


async def test_observing_ends_when_the_time_is_up_or_the_client_is_closed(lab: Lab) -> None:
    actor = lab.actor()
    assert await actor(lambda client: _all_of(client.election("a").observe(timeout=0))) == [None]
    observer = Observer(lab, "a")
    await observer.until_seen(None)

    closing = observer.actor.client.close
    await (closing() if lab.runtime == "asyncio" else asyncio.to_thread(closing))

    async with asyncio.timeout(30):
        assert await observer.task == "over"


def _all_of(observation: Any) -> Any:
    async def gather() -> list[Any]:
        return [leader async for leader in observation]

    return gather() if hasattr(observation, "__aiter__") else list(observation)


async def test_a_callback_receives_changes_until_it_is_ended(lab: Lab) -> None:
    candidate, observer = lab.actor(), lab.actor()
    reported: list[holdfast.Leader | None] = []
    witnessed: list[holdfast.Leader | None] = []  # by a callback that is not ended
    end = await observer(lambda client: client.election("a").on_change(reported.append, every=OFTEN))
    await observer(lambda client: client.election("a").on_change(witnessed.append, every=OFTEN))
    await until(lambda: _is(lambda: reported == witnessed == [None]), "the first call of both")

    lease = await candidate(lambda client: client.election("a").campaign())
    await until(lambda: _is(lambda: len(reported) == 2), "the second call")
    await observer(lambda _: end())
    await until(lambda: _is(lambda: len(witnessed) == 2), "the witness's second call")
    await candidate(lambda _: lease.release())
    await until(lambda: _is(lambda: len(witnessed) == 3), "the witness's third call")

    assert [leader and leader.term for leader in reported] == [None, lease.fence]


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


async def test_a_leader_whose_lease_is_broken_is_notified_or_cancelled(lab: Lab) -> None:
    candidate, operator = lab.actor(), lab.actor()
    leads = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def lead(lease: Any) -> Any:
        loop.call_soon_threadsafe(leads.set_result, lease.fence)
        waited = lease.wait_lost(30)
        return _until_cancelled(waited) if inspect.isawaitable(waited) else waited

    body = asyncio.ensure_future(candidate.body(lambda client: client.election("a", ttl=1), lead))
    term = await leads

    assert await operator(lambda client: client.break_lock("a", term))

    with pytest.raises(holdfast.LockLost, match=str(term)):
        await body
    assert await operator(lambda client: client.election("a").leader()) is None


async def _until_cancelled(waited: Any) -> None:
    waited.close()
    await asyncio.sleep(30)
    raise AssertionError("it was not cancelled")


class Career:
    """An actor in `run`: which terms it has led, and how each ended."""

    def __init__(self, lab: Lab, actor: Actor, *, terms: int | None = None, **options: Any) -> None:
        self.terms: list[int] = []
        self.losses = 0
        self.served = threading.Event()
        self._most = terms
        self.election = actor.client.election("a", **options)
        work = self._lead if lab.runtime == "threads" else self._lead_in_task
        self.task = lab.start(actor, lambda _: self.election.run(work))

    async def until_leading(self, count: int) -> None:
        await until(lambda: _is(lambda: len(self.terms) >= count), f"term number {count}, after {self.terms}")

    def _begin(self, lease: Any) -> bool:
        """Begin a term. Returns whether the leader stays until it is stopped."""
        lease.check()
        self.terms.append(lease.fence)
        if len(self.terms) == self._most:
            self.election.stop()
        return self._most is None

    def _lead(self, lease: Any) -> None:
        if self._begin(lease):
            while not (self.election.stopped or self.served.is_set()):
                if lease.wait_lost(OFTEN):
                    self.losses += 1
                    return

    async def _lead_in_task(self, lease: Any) -> None:
        if self._begin(lease):
            try:
                while not self.served.is_set():
                    await asyncio.sleep(OFTEN)
            except asyncio.CancelledError:
                self.losses += lease.lost
                raise


async def test_run_leads_again_and_again_until_it_is_stopped(lab: Lab) -> None:
    career = Career(lab, lab.actor(), terms=5)

    async with asyncio.timeout(60):
        await career.task

    assert len(career.terms) == 5
    assert sorted(set(career.terms)) == career.terms
    assert (await lab.state("a")).holders == ()


async def test_run_continues_after_a_loss(lab: Lab) -> None:
    operator = lab.actor()
    career = Career(lab, lab.actor(), ttl=3)
    await career.until_leading(1)

    async def is_broken() -> bool:
        return bool(await operator(lambda client: client.break_lock("a", career.terms[-1])))

    await until(is_broken, "the lease of the present term is broken: a busy machine may have lost the first")
    await career.until_leading(2)
    await operator(lambda _: career.election.stop())

    async with asyncio.timeout(60):
        await career.task
    assert career.losses == len(career.terms) - 1, "a busy machine may lose more than one"
    assert sorted(set(career.terms)) == career.terms
    assert (await lab.state("a")).holders == ()


async def test_stopping_a_leader_hands_over_and_stopping_a_waiter_ends_its_wait(lab: Lab) -> None:
    operator, first, second, third = (lab.actor() for _ in range(4))
    leading = Career(lab, first)
    await leading.until_leading(1)
    waiting = Career(lab, second)
    giving_up = Career(lab, third)

    await operator(lambda _: giving_up.election.stop())
    async with asyncio.timeout(60):
        await giving_up.task
    await operator(lambda _: leading.election.stop())
    async with asyncio.timeout(60):
        await leading.task
    await waiting.until_leading(1)

    assert giving_up.terms == []
    assert leading.terms[0] < waiting.terms[0]
    await operator(lambda _: waiting.election.stop())
    await waiting.task


async def test_an_exception_of_work_is_raised_by_run_after_resigning(lab: Lab) -> None:
    actor = lab.actor()

    def fail(lease: Any) -> Any:
        if lab.runtime == "asyncio":
            return _fail()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await actor(lambda client: client.election("a").run(fail))

    assert (await lab.state("a")).holders == ()


def _fail() -> Awaitable[None]:
    async def fail() -> None:
        raise ZeroDivisionError

    return fail()


async def test_a_leader_that_does_not_renew_is_followed_by_a_greater_term(lab: Lab) -> None:
    candidate, other = lab.actor(), lab.actor()
    observer = Observer(lab, "a")
    lost = await candidate(lambda client: client.election("a", ttl=SHORT, renew=False).campaign())
    await observer.until_seen(lost.fence)

    successor = await other(lambda client: client.election("a").campaign(timeout=30))

    assert lost.lost
    assert successor.fence > lost.fence
    await observer.until_seen(successor.fence)
    terms = _without_provisional(observer.terms, lost.fence, successor.fence)
    assert [term for term in terms if term is not None] == [lost.fence, successor.fence]
    await other(lambda _: successor.release())


def _without_provisional(terms: list[int | None], before: int, after: int) -> list[int | None]:
    """The terms without provisional ones of the leader whose term is `after`. These are lower, and no lease has them.

    The nodes of a Redlock may return one while they agree on the term. On other stores, a ticket that polls just after
    a release has granted it is granted again with a greater fence.
    """
    return [term for term in terms if term in {None, before} or term >= after]
