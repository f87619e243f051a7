"""`once`: two calls with one key both run, a finished run is repeated, or an interrupted one blocks its key forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.ports import Record
from holdfast.primitives import Primitive
from holdfast.runtimes.threads import run_sync
from holdfast_lab.conformance.lab import Actor, Lab, until

pytestmark = pytest.mark.needs(Primitive.ONCE)


class Jobs:
    """Functions of this lab's kind, which note their runs."""

    def __init__(self, lab: Lab) -> None:
        self._is_async = lab.runtime == "asyncio"
        self.runs: list[Any] = []

    def returning(self, value: Any) -> Callable[..., Any]:
        return self._of(lambda *_: value)

    def raising(self, error: BaseException) -> Callable[..., Any]:
        def fail(*_: Any) -> None:
            raise error

        return self._of(fail)

    def _of(self, body: Callable[..., Any]) -> Callable[..., Any]:
        def plain(*args: Any) -> Any:
            self.runs.append(args)
            return body(*args)

        async def awaited(*args: Any) -> Any:
            return plain(*args)

        return awaited if self._is_async else plain


@pytest.fixture
def jobs(lab: Lab) -> Jobs:
    return Jobs(lab)


async def run(actor: Actor, function: Callable[..., Any], *args: Any, key: str = "k", **options: Any) -> Any:
    return await actor(lambda client: client.once(key, **options).run(function, *args))


async def info(actor: Actor, key: str = "k") -> holdfast.OnceInfo | None:
    record: holdfast.OnceInfo | None = await actor(lambda client: client.once(key).inspect())
    return record


async def test_the_first_call_runs_and_later_ones_get_its_result(lab: Lab, jobs: Jobs) -> None:
    first, second = lab.actor(), lab.actor()
    result = {"id": 7, "name": "é😀\x00", "parts": [1, None, 2.5]}

    ran = await run(first, jobs.returning(result), 1, result=True)
    again = await run(second, jobs.returning("other"), 2, result=True)

    assert (ran.ran, ran.value) == (True, result)
    assert again == holdfast.Outcome(ran=False, value=result, fence=ran.fence, at=ran.at)
    assert jobs.runs == [(1,)]
    assert (await run(first, jobs.returning(3), key="K", skipped="no")).value == 3
    assert (await run(second, jobs.returning(4), key="K", skipped="no")).value == "no"


async def test_of_many_concurrent_calls_one_runs(lab: Lab, jobs: Jobs) -> None:
    actors = [lab.actor() for _ in range(4)]

    outcomes = await asyncio.gather(*(run(actor, jobs.returning(n), result=True) for n, actor in enumerate(actors)))

    assert len(jobs.runs) == 1
    assert sorted(outcome.ran for outcome in outcomes) == [False, False, False, True]
    assert len({(outcome.value, outcome.fence) for outcome in outcomes}) == 1
    assert await lab.actor()(lambda client: client.locks()) == []


async def test_a_call_waits_skips_or_raises_while_another_runs(lab: Lab, jobs: Jobs) -> None:
    runner, other = lab.actor(), lab.actor()
    begun, end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def plain() -> str:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(end.wait(), loop).result(60)
        return "done"

    async def awaited() -> str:
        begun.set()
        await end.wait()
        return "done"

    body = plain if lab.runtime == "threads" else awaited
    running = lab.start(runner, lambda client: client.once("k", result=True).run(body))
    await begun.wait()

    record = await info(other)
    assert record is not None
    assert record.state == "running"
    skipped = await run(other, jobs.returning(0), busy="skip", skipped="busy")
    assert skipped == holdfast.Outcome(ran=False, value="busy", fence=record.fence, at=None)
    with pytest.raises(holdfast.AcquireTimeout):
        await run(other, jobs.returning(0), busy="raise")
    with pytest.raises(holdfast.AcquireTimeout):
        await run(other, jobs.returning(0), timeout=0.05)
    waiting = lab.start(other, lambda client: client.once("k", result=True).run(jobs.returning(0)))
    end.set()

    assert (await running).ran
    assert (await waiting).value == "done"
    assert jobs.runs == []


async def test_a_run_that_raised_is_forgotten_or_remembered(lab: Lab, jobs: Jobs) -> None:
    first, second = lab.actor(), lab.actor()

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await run(first, jobs.raising(ZeroDivisionError()))
    assert await info(second) is None
    with pytest.raises(ValueError, match="declined"):
        await run(first, jobs.raising(ValueError("declined")), after_error="remember")
    with pytest.raises(holdfast.OnceFailed, match="ValueError: declined") as failed:
        await run(second, jobs.returning(1))

    assert len(jobs.runs) == 3
    record = await info(second)
    assert record is not None
    assert (record.state, record.fence, record.error) == ("failed", failed.value.fence, "ValueError: declined")


async def test_another_check_is_a_mismatch(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    await run(actor, jobs.returning(1), check="10 EUR")

    with pytest.raises(holdfast.OnceMismatch):
        await run(actor, jobs.returning(1), check="20 EUR")

    assert not (await run(actor, jobs.returning(1), check="10 EUR")).ran
    assert not (await run(actor, jobs.returning(1))).ran
    assert len(jobs.runs) == 1


async def interrupt(lab: Lab, jobs: Jobs, key: str = "k") -> holdfast.OnceInfo:
    """Leave the record of a run whose process has died: its lock is not held, and its state is `running`."""
    actor = lab.actor()
    await run(actor, jobs.returning("from the dead"), 0, key=key)
    done = await info(actor, key)
    assert done is not None

    def swap(client: Any) -> Any:
        backend = client._engine.backend

        def request(expected: str, record: Record | None) -> Any:
            return backend.swap_record(key, expected, record, keep=1000.0, deadline=client._engine.request_deadline())

        async def change() -> None:
            record = await request("", None)
            running = record.payload.replace('"state":"done"', '"state":"running"')
            assert (await request(record.nonce, Record("d" * 32, running))).nonce == "d" * 32

        return run_sync(change()) if lab.runtime == "threads" else change()

    await actor(swap)
    return done


async def test_an_interrupted_run_is_raised_skipped_or_repeated(lab: Lab, jobs: Jobs) -> None:
    dead, actor = await interrupt(lab, jobs), lab.actor()

    with pytest.raises(holdfast.OnceInterrupted) as raised:
        await run(actor, jobs.returning(1))
    assert (raised.value.key, raised.value.fence, raised.value.host, raised.value.pid, raised.value.since) == (
        *("k", dead.fence, dead.host, dead.pid),
        dead.since,
    )
    record = await info(actor)
    assert record is not None
    assert record.state == "interrupted"
    skipped = await run(actor, jobs.returning(1), after_crash="skip", skipped="?")
    assert skipped == holdfast.Outcome(ran=False, value="?", fence=dead.fence, at=None)
    assert len(jobs.runs) == 1

    retried = await run(actor, jobs.returning(2), after_crash="retry")

    assert (retried.ran, retried.value) == (True, 2)
    assert retried.fence > dead.fence
    assert not (await run(lab.actor(), jobs.returning(3))).ran


async def test_a_forgotten_run_runs_again_and_only_its_fence_forgets_it(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    ran = await run(actor, jobs.returning(1))

    assert not await actor(lambda client: client.forget("k", fence=ran.fence - 1))
    assert not await actor(lambda client: client.forget("other", fence=ran.fence))
    assert await actor(lambda client: client.forget("k", fence=ran.fence))
    assert not await actor(lambda client: client.forget("k", fence=ran.fence))

    assert (await run(actor, jobs.returning(1))).ran
    dead = await interrupt(lab, jobs, "i")
    assert await actor(lambda client: client.forget("i", fence=dead.fence))
    assert (await run(actor, jobs.returning(1), key="i")).ran


async def test_a_run_is_forgotten_after_its_retention(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    assert (await run(actor, jobs.returning(1), retention="200ms")).ran

    async def runs_again() -> bool:
        outcome = await run(actor, jobs.returning(2), retention="200ms")
        return bool(outcome.ran)

    await until(runs_again, "another run")


async def test_the_decorator_fills_in_the_arguments_and_run_does_not(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()

    def plain(order: int, amount: int = 5) -> list[int]:
        jobs.runs.append((order, amount))
        return [order, amount]

    async def awaited(order: int, amount: int = 5) -> list[int]:
        return plain(order, amount)

    once = actor.client.once("charge:{order}", check="{amount}", result=True)
    charge = once(plain if lab.runtime == "threads" else awaited)

    assert [await actor(lambda _, n=n: charge(n)) for n in (1, 2, 1)] == [[1, 5], [2, 5], [1, 5]]
    with pytest.raises(holdfast.OnceMismatch):
        await actor(lambda _: charge(order=1, amount=6))
    assert jobs.runs == [(1, 5), (2, 5)]
    assert (await info(actor, "charge:1")) is not None
    assert (await actor(lambda _: once.run(jobs.returning(1)))).ran
    assert (await info(actor, "charge:{order}")) is not None


async def test_the_locks_of_once_are_reserved(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    await actor(lambda client: client.lock("k").acquire(timeout=0))

    assert (await run(actor, jobs.returning(1), busy="raise")).ran
    assert (await run(actor, jobs.returning(1), key="😀" * 498)).ran
    with pytest.raises(holdfast.ConfigurationError, match="holdfast:once:"):
        await actor(lambda client: client.lock("holdfast:once:k").acquire(timeout=0))
