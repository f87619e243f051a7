"""`once` under faults. Hazard: a lost reply, an interrupt, a loss or a fork causes a second run, or hides the first."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import holdfast
from holdfast.core.once import RESULT_MAX
from holdfast.core.ports import RECORD_MAX, Record
from holdfast_lab.conformance.event_ledger import Ledger
from holdfast_lab.conformance.lab import Actor, Lab, until
from holdfast_lab.conformance.test_once_key import Jobs, info, run
from tests.support.faulty import BUG, DOWN, LATE, LOST, NO_REPLY, OK, REFUSED, Faults


@pytest.fixture
def jobs(lab: Lab) -> Jobs:
    return Jobs(lab)


async def state(lab: Lab) -> str | None:
    record = await info(lab.actor())
    return None if record is None else record.state


# ── requests without an answer ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY])
@pytest.mark.parametrize("answers", [0, 1], ids=["start", "completion"])
async def test_a_write_without_an_answer_is_repeated(
    lab: Lab, jobs: Jobs, faults: Faults, outcome: str, answers: int
) -> None:
    actor = lab.actor()
    faults.plan("swap_record", *[OK] * answers, outcome, OK)

    assert (await run(actor, jobs.returning(1), result=True)).ran

    assert (await run(actor, jobs.returning(2), result=True)).value == 1
    assert len(jobs.runs) == 1


@pytest.mark.parametrize("outcomes", [[LATE, OK], [LATE, LATE, OK], [LATE, LOST, OK], [LATE, DOWN, OK]])
async def test_a_start_that_arrives_after_the_end_of_its_call_is_no_interrupted_run(
    lab: Lab, jobs: Jobs, faults: Faults, outcomes: list[str]
) -> None:
    actor = lab.actor()
    faults.plan("swap_record", *outcomes)
    with pytest.raises((ValueError, holdfast.OutcomeUnknown)):
        await run(actor, jobs.raising(ValueError("card declined")))
    assert await state(lab) is None

    await faults.arrive()

    assert await state(lab) is None
    assert (await run(actor, jobs.returning(2), result=True)).value == 2
    assert (await run(actor, jobs.returning(3), result=True)).value == 2


@pytest.mark.parametrize("outcomes", [[NO_REPLY, NO_REPLY], [NO_REPLY, DOWN], [LOST, LOST]])
async def test_a_start_without_an_answer_does_not_run_and_removes_its_record(
    lab: Lab, jobs: Jobs, faults: Faults, outcomes: list[str]
) -> None:
    actor = lab.actor()
    faults.plan("swap_record", *outcomes, OK)

    with pytest.raises(holdfast.OutcomeUnknown):
        await run(actor, jobs.returning(1))

    assert jobs.runs == []
    assert await state(lab) is None
    assert (await run(actor, jobs.returning(1))).ran


async def test_a_start_that_cannot_be_undone_is_an_interrupted_run(lab: Lab, jobs: Jobs, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("swap_record", NO_REPLY, LOST)

    with pytest.raises(holdfast.OutcomeUnknown):
        await run(actor, jobs.returning(1))

    faults.plan("swap_record", OK)
    assert await state(lab) == "interrupted"
    with pytest.raises(holdfast.OnceInterrupted):
        await run(actor, jobs.returning(1))
    assert jobs.runs == []


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(DOWN, holdfast.BackendUnavailable), (REFUSED, holdfast.ConfigurationError), (BUG, ZeroDivisionError)],
)
async def test_a_refused_start_does_not_run(
    lab: Lab, jobs: Jobs, faults: Faults, outcome: str, error: type[Exception]
) -> None:
    actor = lab.actor()
    faults.plan("swap_record", outcome, OK)

    with pytest.raises(error):
        await run(actor, jobs.returning(1))

    assert jobs.runs == []
    assert (await run(actor, jobs.returning(1))).ran


async def test_a_completion_without_an_answer_is_unknown_and_no_second_run_starts(
    lab: Lab, jobs: Jobs, faults: Faults
) -> None:
    actor = lab.actor()
    faults.plan("swap_record", OK, LOST)

    with pytest.raises(holdfast.OutcomeUnknown, match="the body has run"):
        await run(actor, jobs.returning(1), ttl=0.3)

    faults.plan("swap_record", OK)
    assert await state(lab) == "interrupted"
    with pytest.raises(holdfast.OnceInterrupted):
        await run(actor, jobs.returning(1))
    assert len(jobs.runs) == 1


async def test_a_completion_waits_for_a_store_that_is_down_for_a_moment(lab: Lab, jobs: Jobs, faults: Faults) -> None:
    faults.plan("swap_record", OK, DOWN, DOWN, DOWN, OK)

    assert (await run(lab.actor(), jobs.returning(1))).ran

    assert await state(lab) == "done"


async def test_an_error_of_the_body_is_raised_although_its_record_cannot_be_removed(
    lab: Lab, jobs: Jobs, faults: Faults
) -> None:
    faults.plan("swap_record", OK, DOWN)

    with pytest.raises(ZeroDivisionError) as raised:
        await run(lab.actor(), jobs.raising(ZeroDivisionError()), ttl=0.3)

    assert "may report an interruption" in raised.value.__notes__[0]
    assert await state(lab) == "interrupted"


async def test_a_store_that_is_down_raises_before_the_lock_is_acquired(lab: Lab, jobs: Jobs, faults: Faults) -> None:
    faults.plan("read_record", DOWN, OK)

    with pytest.raises(holdfast.BackendUnavailable):
        await run(lab.actor(), jobs.returning(1))

    assert faults.count("try_acquire") == 0


async def test_a_call_that_loses_its_lease_before_the_body_does_not_run(lab: Lab, jobs: Jobs, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("renew", DOWN)
    faults.plan("swap_record", 1.0, OK)

    with pytest.raises(holdfast.LockLost):
        await run(actor, jobs.returning(1), ttl=0.3, on_lost="event")

    assert jobs.runs == []
    assert await state(lab) is None


async def test_a_call_that_lost_its_lease_does_not_report_another_run_as_interrupted(
    lab: Lab, jobs: Jobs, faults: Faults
) -> None:
    actor, other = lab.actor(), lab.actor()
    await swap(lab, other, "", Record("f" * 32, json.dumps({**RUNNING, "fence": 0})))
    faults.plan("renew", DOWN)
    faults.plan("swap_record", 1.0, OK)

    with pytest.raises(holdfast.LockLost):
        await run(actor, jobs.returning(1), ttl=0.3, on_lost="event")

    assert jobs.runs == []


RUNNING = {"state": "running", "fence": 1, "host": "web-3", "pid": 812, "since": 1e9, "check": ""}

# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ITSELF: list[Any] = []
ITSELF.append(ITSELF)


class Hostile(dict[str, int]):
    def items(self) -> Any:
        raise KeyError("no items")


@pytest.mark.parametrize("value", [Decimal(1), {1, 2}, math.nan, "x" * RESULT_MAX, ITSELF, Hostile(a=1), b"x"])
async def test_a_result_that_is_not_json_is_refused_and_the_run_is_done(lab: Lab, jobs: Jobs, value: Any) -> None:
    actor = lab.actor()

    with pytest.raises(holdfast.ConfigurationError, match="recorded as done"):
        await run(actor, jobs.returning(value), result=True)

    assert await state(lab) == "done"
    with pytest.raises(holdfast.OnceFailed, match="cannot be remembered"):
        await run(actor, jobs.returning(1), result=True)
    assert (await run(actor, jobs.returning(1), skipped="ran before")).value == "ran before"
    assert len(jobs.runs) == 1


@pytest.mark.parametrize("value", ["x" * (RESULT_MAX - 2), "\ud800", None, False, 0, "", [], {"a": {"b": [1, "é"]}}])
async def test_a_json_result_is_remembered(lab: Lab, jobs: Jobs, value: Any) -> None:
    actor = lab.actor()
    assert (await run(actor, jobs.returning(value), result=True)).value == value

    again = await run(actor, jobs.returning(1), result=True)

    assert (again.ran, again.value) == (False, value)


async def test_the_longest_record_fits_into_the_store(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    with pytest.raises(ValueError, match="x"):
        await run(actor, jobs.raising(ValueError("😀" * 100_000 + "x")), after_error="remember", check="x" * 10_000)
    await run(actor, jobs.returning("x" * (RESULT_MAX - 2)), result=True, key="r" * 498, check="x" * 10_000)

    for key in ("k", "r" * 498):
        record = await read(lab, actor, key)
        assert record is not None
        assert len(record.payload.encode()) < RECORD_MAX - 1000


async def test_a_run_without_its_result_is_an_error_for_a_call_that_needs_it(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    await run(actor, jobs.returning(1))

    with pytest.raises(holdfast.OnceFailed, match="without its result"):
        await run(actor, jobs.returning(1), result=True)


async def read(lab: Lab, actor: Actor, key: str = "k") -> Record | None:
    return await swap(lab, actor, "", None, key)


async def swap(lab: Lab, actor: Actor, expected: str, record: Record | None, key: str = "k") -> Record | None:
    from holdfast.runtimes.threads import run_sync

    def request(client: Any) -> Any:
        engine = client._engine
        call = engine.backend.swap_record(key, expected, record, keep=100.0, deadline=engine.request_deadline())
        return run_sync(call) if lab.runtime == "threads" else call

    current: Record | None = await actor(request)
    return current


@pytest.mark.parametrize("payload", ["", "[]", "null", '{"state": "half"}', '{"state": "done"}', "{" * 9999])
async def test_a_record_of_another_program_is_refused(lab: Lab, jobs: Jobs, payload: str) -> None:
    actor = lab.actor()
    await swap(lab, actor, "", Record("f" * 32, payload))

    with pytest.raises(holdfast.NameConflict, match="not written by"):
        await run(actor, jobs.returning(1))

    assert jobs.runs == []


# ── losses, replacements, interrupts ─────────────────────────────────────────────────────────────────────────────────


def body_of(lab: Lab, work: Callable[[], Any]) -> Callable[[], Any]:
    """A body for the API of this lab. The loop runs the coroutine of `work`, for threads too."""
    loop = asyncio.get_running_loop()

    async def awaited() -> Any:
        return await work()

    def plain() -> Any:
        return asyncio.run_coroutine_threadsafe(awaited(), loop).result(60)

    return plain if lab.runtime == "threads" else awaited


async def break_lock(lab: Lab) -> None:
    operator, name = lab.actor(), "holdfast:once:k"
    (holder,) = (await lab.state(name)).holders
    assert await operator(lambda client: client.break_lock(name, holder.fence))


async def test_a_run_that_lost_its_lease_completes_while_its_record_exists(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()

    async def work() -> str:
        await break_lock(lab)
        with pytest.raises(holdfast.OnceInterrupted):
            await run(lab.actor(), jobs.returning(1))
        return "done"

    outcome = await run(actor, body_of(lab, work), result=True, on_lost="event")

    assert (outcome.ran, outcome.value) == (True, "done")
    assert (await run(actor, jobs.returning(1), result=True)).value == "done"
    assert jobs.runs == []


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_a_run_that_was_replaced_changes_no_record(lab: Lab, jobs: Jobs, ending: str) -> None:
    actor = lab.actor()

    async def work() -> str:
        await break_lock(lab)
        assert (await run(lab.actor(), jobs.returning("second"), after_crash="retry", result=True)).ran
        if ending == "raises":
            raise ZeroDivisionError
        return "first"

    with pytest.raises(holdfast.LockLost if ending == "returns" else ZeroDivisionError):
        await run(actor, body_of(lab, work), result=True, on_lost="event")

    again = await run(actor, jobs.returning(1), result=True)
    assert (again.ran, again.value) == (False, "second")


async def test_a_forgotten_run_cannot_be_recorded(lab: Lab, jobs: Jobs) -> None:
    actor, operator = lab.actor(), lab.actor()

    async def work() -> None:
        record = await info(operator)
        assert record is not None
        assert await operator(lambda client: client.forget("k", fence=record.fence))

    with pytest.raises(holdfast.LockLost, match="forgotten"):
        await run(actor, body_of(lab, work))

    assert await state(lab) is None


async def test_a_body_that_ends_because_of_a_loss_is_interrupted(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    leases: list[Any] = []

    async def work() -> None:
        await break_lock(lab)
        await until(lambda: _lost(leases[0]), "the loss")

    def plain(lease: Any) -> None:
        leases.append(lease)
        body_of_threads()
        lease.check()

    async def awaited(lease: Any) -> None:
        leases.append(lease)
        await work()
        await asyncio.sleep(60)  # the loss cancels it

    body_of_threads = body_of(lab, work) if lab.runtime == "threads" else work
    body = plain if lab.runtime == "threads" else awaited

    with pytest.raises(holdfast.LockLost):
        await run(actor, body, lease="lease", ttl=0.5)

    assert await state(lab) == "interrupted"
    assert (await run(actor, jobs.returning(2), after_crash="retry")).ran


async def _lost(lease: Any) -> bool:
    return bool(lease.lost)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_of_the_body_is_an_error_as_any_other(faulty_url: str, error: type[BaseException]) -> None:
    def body() -> None:
        raise error

    with holdfast.Client(faulty_url) as client:
        with pytest.raises(error):
            client.once("k").run(body)
        assert client.once("k").inspect() is None
        with pytest.raises(error):
            client.once("k", after_error="remember").run(body)
        with pytest.raises(holdfast.OnceFailed, match=error.__name__):
            client.once("k").run(lambda: None)


async def test_a_cancelled_body_is_an_error_as_any_other(faulty_url: str) -> None:
    begun = asyncio.Event()

    async def body() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with holdfast.AsyncClient(faulty_url) as client:
        for after_error in ("retry", "remember"):
            begun.clear()
            task = asyncio.create_task(client.once("k", after_error=after_error).run(body))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            info = await client.once("k").inspect()
            assert (info and info.state) == {"retry": None, "remember": "failed"}[after_error]


@pytest.mark.parametrize("step", ["start", "completion", "removal"])
async def test_a_cancellation_waits_for_the_end_of_a_step(faulty_url: str, faults: Faults, step: str) -> None:
    reached, may_continue = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    async def block() -> None:
        reached.set()
        await may_continue.wait()

    async def body() -> None:
        runs.append(1)
        if step == "removal":
            raise ZeroDivisionError

    faults.plan("swap_record", *([] if step == "start" else [OK]), block, OK)
    async with holdfast.AsyncClient(faulty_url) as client:
        task = asyncio.create_task(client.once("k").run(body))
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_continue.set()
        with pytest.raises(asyncio.CancelledError):
            await task

        info = await client.once("k").inspect()
        assert (info and info.state) == {"start": None, "completion": "done", "removal": None}[step]
        assert runs == ([] if step == "start" else [1])
        assert await client.locks() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_in_the_body_leaves_the_run_to_the_parent(tmp_path: Any) -> None:
    client = holdfast.Client(f"sqlite://{tmp_path}/locks.db")
    reading, writing = os.pipe()
    parent = os.getpid()

    def body() -> int:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return os.getpid()

    try:
        outcome = client.once("k", result=True).run(body)
        result = repr((outcome.ran, outcome.value == parent))
    except BaseException as error:
        result = type(error).__name__
    if os.getpid() != parent:
        os.write(writing, result.encode())
        os._exit(0)

    assert os.read(reading, 1000) == b"LockLost"
    assert result == "(True, True)"
    assert client.once("k", result=True).run(body).value == parent
    client.close()
    os.close(reading)
    os.close(writing)


def test_a_body_that_returns_a_coroutine_is_refused_and_not_recorded(faulty_url: str) -> None:
    async def coroutine() -> None:
        """Never runs."""

    with holdfast.Client(faulty_url) as client:
        with pytest.raises(holdfast.ConfigurationError, match=r"AsyncClient\.once"):
            client.once("k").run(lambda: coroutine())  # noqa: PLW0108 - a plain function
        assert client.once("k").inspect() is None


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_call_is_a_run_or_a_skipped_one(lab: Lab, jobs: Jobs) -> None:
    actor = lab.actor()
    ledger = Ledger(actor.client)
    await run(actor, jobs.returning(1), check="a")
    await run(actor, jobs.returning(1))
    with pytest.raises(holdfast.OnceMismatch):
        await run(actor, jobs.returning(1), check="b")
    with pytest.raises(ValueError, match="x"):
        await run(actor, jobs.raising(ValueError("x")), key="f", after_error="remember")
    with pytest.raises(holdfast.OnceFailed):
        await run(actor, jobs.returning(1), key="f")
    done = await read(lab, actor)
    assert done is not None
    running = Record("d" * 32, json.dumps({**json.loads(done.payload), "state": "running"}))
    await swap(lab, actor, done.nonce, running)
    with pytest.raises(holdfast.OnceInterrupted):
        await run(actor, jobs.returning(1))

    ledger.check()
    assert ledger.kinds["started"] == 2
    assert {outcome for outcome in ledger.outcomes if outcome.startswith("skipped")} == {
        "skipped: done",
        "skipped: mismatch",
        "skipped: failed",
        "skipped: interrupted",
    }
    assert {event.group for event in ledger.events} == {"k", "f"}
    assert {event.primitive for event in ledger.events} == {"once"}
