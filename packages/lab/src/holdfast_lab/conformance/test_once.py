"""`once_per` and its registers: one of all callers runs in each period, and a run that fails is not repeated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.primitives import Primitive
from holdfast.runtimes.threads import run_sync
from holdfast_lab.conformance.lab import Actor, Lab, until

KEEP = 3600.0


pytestmark = pytest.mark.needs(Primitive.ONCE_PER)


def job(lab: Lab, actor: Actor, runs: list[str], runner: str, **options: Any) -> Callable[[], Any]:
    """A function of this lab's kind that adds the name of its runner to `runs`."""

    def plain() -> str:
        runs.append(runner)
        return "ran"

    async def awaited() -> str:
        return plain()

    options = {"period": "52w", "name": "job", "skipped": "not now", **options}
    made: Callable[[], Any] = actor.client.once_per(options.pop("period"), **options)(
        plain if lab.runtime == "threads" else awaited
    )
    return made


def verb(lab: Lab, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A call of a method of the backend, with threads or asyncio, as the lab has it."""
    return lambda client: (
        run_sync(call(client._engine.backend)) if lab.runtime == "threads" else call(client._engine.backend)
    )


async def test_of_many_concurrent_calls_one_runs(lab: Lab) -> None:
    runs: list[str] = []
    actors = [lab.actor() for _ in range(4)]
    jobs = [job(lab, actor, runs, str(number)) for number, actor in enumerate(actors)]

    results = await asyncio.gather(
        *(actor(lambda _, call=call: call()) for actor, call in zip(actors, jobs, strict=True) for _ in range(3))
    )

    assert len(runs) == 1
    assert sorted(results) == ["not now"] * 11 + ["ran"]
    other = job(lab, actors[0], runs, "other", name="another job")
    assert await actors[0](lambda _: other()) == "ran"
    assert (await lab.state("job")).holders == ()


async def test_a_run_that_fails_is_not_repeated_in_its_period(lab: Lab) -> None:
    actor = lab.actor()
    runs: list[str] = []

    def plain() -> None:
        runs.append("failed")
        raise ZeroDivisionError

    async def awaited() -> None:
        plain()

    call = actor.client.once_per("52w", name="job")(plain if lab.runtime == "threads" else awaited)

    with pytest.raises(ZeroDivisionError):
        await actor(lambda _: call())

    assert await actor(lambda _: call()) is None
    again = job(lab, lab.actor(), runs, "other")
    assert await actor(lambda _: again()) == "not now"
    assert runs == ["failed"]


async def test_each_period_has_a_run(lab: Lab) -> None:
    runs: list[str] = []
    actor = lab.actor()
    call = job(lab, actor, runs, "one", period="1s")
    began = time.time()

    async def called() -> bool:
        await actor(lambda _: call())
        return len(runs) >= 3

    await until(called, "three periods had their run")

    assert len(runs) <= time.time() - began + 2


async def test_a_run_is_skipped_while_the_previous_one_holds_the_lock(lab: Lab) -> None:
    runs: list[str] = []
    actor, slow = lab.actor(), lab.actor()
    call = job(lab, actor, runs, "one")
    held = await slow(lambda client: client.lock("job").acquire())

    assert await actor(lambda _: call()) == "not now"
    await slow(lambda _: held.release())

    assert await actor(lambda _: call()) == "not now", "the period was claimed"
    assert runs == []


async def test_a_register_never_decreases_and_one_call_advances_it(lab: Lab) -> None:
    first, other = lab.actor(), lab.actor()

    async def advance(actor: Actor, number: int, nonce: str, name: str = "m") -> bool:
        advanced: bool = await actor(
            verb(
                lab,
                lambda backend: backend.advance_register(
                    name, number, nonce=nonce * 32, keep=KEEP, deadline=_soon(actor)
                ),
            )
        )
        return advanced

    async def read(*names: str) -> list[int]:
        return list(await other(verb(lab, lambda backend: backend.read_registers(names, deadline=_soon(other)))))

    assert await read("m", "n") == [0, 0]
    assert await advance(first, 5, "a")
    assert await advance(first, 5, "a"), "the same call, sent again"
    assert not await advance(other, 5, "b")
    assert not await advance(other, 4, "b")
    assert await read("n", "m") == [0, 5]
    assert await advance(other, 2**63 - 1, "b")
    assert not await advance(first, 5, "a"), "another call has advanced it since"
    assert await read("m") == [2**63 - 1]

    longest = "once:" + "ü" * 512 + "@2147483647"
    assert await advance(first, 1, "c", longest)
    assert not await advance(other, 1, "d", longest)
    assert await advance(other, 1, "d", longest[:-1])
    assert await read(longest, longest[:-1], longest.upper()) == [1, 1, 0]
    assert await other(lambda client: client.locks()) == []
    assert await other(lambda client: client.lock("m").acquire(timeout=0)), "a register is no lock"


async def test_of_many_concurrent_advances_of_a_register_one_succeeds(lab: Lab) -> None:
    actors = [lab.actor() for _ in range(4)]

    async def advance(actor: Actor, number: int, nonce: str) -> bool:
        advanced: bool = await actor(
            verb(
                lab,
                lambda backend: backend.advance_register("m", number, nonce=nonce, keep=KEEP, deadline=_soon(actor)),
            )
        )
        return advanced

    for number in range(1, 6):
        advanced = await asyncio.gather(
            *(advance(actor, number, f"{number}{index}".zfill(32)) for index, actor in enumerate(actors))
        )
        assert sum(advanced) == 1, number


def _soon(actor: Actor) -> float:
    now: float = actor.client._engine.runtime.now()
    return now + 30
