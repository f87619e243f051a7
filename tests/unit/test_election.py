"""Elections with faults: a store that is down or has old data, other programs, callbacks that fail, cancellations."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import BUG, DOWN, LOST, OK, TOO_FEW, Faults

POLL_INTERVAL = 0.005  # seconds between two polls


def holder(fence: int, *, pid: int = 1, exclusive: bool = True, since: float = 5.0) -> TicketInfo:
    return TicketInfo(fence, "host", pid, "agent", "program", since, 9.0, exclusive, 1 if exclusive else None, {})


def held(*holders: TicketInfo) -> LockInfo:
    return LockInfo("a", holders, ())


FREE = held()


async def observed_terms(lab: Lab, **options: Any) -> list[int | None]:
    """The terms that an observer yields until it ends."""
    actor = lab.actor()

    def observe(client: Any) -> Any:
        observation = client.election("a").observe(every=POLL_INTERVAL, **options)
        return _collect(observation) if lab.runtime == "asyncio" else list(observation)

    leaders = await actor(observe)
    return [leader and leader.term for leader in leaders]


async def _collect(observation: Any) -> list[Any]:
    return [leader async for leader in observation]


async def test_an_observer_yields_no_older_term(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", held(holder(7)), held(holder(5)), FREE, held(holder(6)), held(holder(8)))

    assert await observed_terms(lab, timeout=0.3) == [7, None, 8]


async def test_a_leader_is_reported_once_although_its_start_time_varies(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", held(holder(7)), held(holder(7, since=5.1)), held(holder(7)))

    assert await observed_terms(lab, timeout=0.1) == [7]


async def test_a_program_without_fences_leads_without_a_term(lab: Lab, faults: Faults) -> None:
    other = holder(0, since=6.0)
    faults.plan("inspect", held(holder(7)), held(holder(0)), held(other), held(holder(0, pid=2)), held(holder(8)))

    assert await observed_terms(lab, timeout=0.3) == [7, 0, 0, 8]
    actor = lab.actor()
    faults.plan("inspect", held(other))
    assert str(await actor(lambda client: client.election("a").leader())) == "another program"


async def test_readers_and_permits_do_not_lead(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", held(holder(7, exclusive=False), holder(8, exclusive=False)))

    assert await observed_terms(lab, timeout=0) == [None]


async def test_a_store_that_is_down_at_the_first_poll_raises_at_once(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", DOWN)

    with pytest.raises(holdfast.BackendUnavailable):
        await observed_terms(lab, timeout=30)


async def test_an_observation_continues_after_an_outage_and_logs_it_once(
    lab: Lab, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.plan("inspect", held(holder(7)), DOWN, LOST, TOO_FEW, held(holder(7)), held(holder(8)))
    caplog.set_level(logging.INFO, "holdfast")

    assert await observed_terms(lab, timeout=1.0) == [7, 8]

    messages = [record.message for record in caplog.records]
    assert ["does not answer" in line for line in messages].count(True) == 1
    assert ["answers again" in line for line in messages].count(True) == 1


async def test_an_observation_raises_when_its_time_ends_during_an_outage(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", held(holder(7)), DOWN)

    with pytest.raises(holdfast.BackendUnavailable):
        await observed_terms(lab, timeout=0.2)


async def test_an_error_that_is_no_outage_ends_the_observation(lab: Lab, faults: Faults) -> None:
    faults.plan("inspect", held(holder(7)), BUG)

    with pytest.raises(ZeroDivisionError):
        await observed_terms(lab)


async def test_a_callback_that_fails_is_logged_and_called_again(
    lab: Lab, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.plan("inspect", DOWN, held(holder(7)), held(holder(8)), held(holder(9)))
    reported: list[int] = []
    actor = lab.actor()

    def fail_at_first(leader: holdfast.Leader | None) -> Any:
        assert leader is not None
        reported.append(leader.term)
        if leader.term == 7:
            raise ZeroDivisionError
        return asyncio.sleep(0) if lab.runtime == "asyncio" else None

    end = await actor(lambda client: client.election("a").on_change(fail_at_first, every=POLL_INTERVAL))

    async def is_reported() -> bool:
        return reported == [7, 8, 9]

    await until(is_reported, "all three")
    await actor(lambda _: end())
    assert [record.message for record in caplog.records if record.exc_info] == [
        "an on_change callback of election 'a' failed"
    ]


async def test_closing_the_client_ends_its_callbacks(lab: Lab) -> None:
    actor = lab.actor()
    reported: list[Any] = []
    await actor(lambda client: client.election("a").on_change(reported.append, every=3600))

    async def is_reported() -> bool:
        return reported == [None]

    await until(is_reported, "the first poll")
    async with asyncio.timeout(30):
        await actor(lambda client: client.close())

    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-observer"]


async def test_functions_of_the_other_kind_are_refused(lab: Lab) -> None:
    actor = lab.actor()

    async def coroutine(_: Any) -> None: ...

    def plain(_: Any) -> None: ...

    def hidden(lease: Any) -> Any:
        return coroutine(lease) if lab.runtime == "threads" else None

    work: Any = coroutine if lab.runtime == "threads" else plain
    for wrong in (work, hidden, "work"):
        with pytest.raises(holdfast.ConfigurationError, match="work"):
            await actor(lambda client, wrong=wrong: client.election("a").run(wrong))
    assert (await lab.state("a")).holders == ()
    with pytest.raises(holdfast.ConfigurationError, match="callback"):
        await actor(lambda client: client.election("a").on_change("callback"))
    if lab.runtime == "threads":
        with pytest.raises(holdfast.ConfigurationError, match="callback"):
            await actor(lambda client: client.election("a").on_change(coroutine))
    for option, value in (("every", 0), ("timeout", -1)):
        with pytest.raises(holdfast.ConfigurationError, match=option):
            await actor(lambda client, given={option: value}: client.election("a").observe(**given))


async def test_run_raises_at_once_when_the_store_is_down_at_first(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", DOWN)

    with pytest.raises(holdfast.BackendUnavailable):
        await actor(lambda client: client.election("a").run(_never(lab)))


def _never(lab: Lab) -> Any:
    async def never_in_task(_: Any) -> None:
        raise AssertionError("it was elected")

    def never(_: Any) -> None:
        raise AssertionError("it was elected")

    return never if lab.runtime == "threads" else never_in_task


async def test_run_continues_after_an_outage_between_two_terms(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    election = actor.client.election("a")
    faults.plan("try_acquire", OK, DOWN, DOWN, TOO_FEW, OK)
    terms: list[int] = []

    def lead(lease: Any) -> None:
        terms.append(lease.fence)
        if len(terms) == 2:
            election.stop()

    async def lead_in_task(lease: Any) -> None:
        lead(lease)

    await actor(lambda _: election.run(lead if lab.runtime == "threads" else lead_in_task))

    assert len(terms) == 2
    assert [outcome for verb, outcome in faults.calls if verb == "try_acquire"] == [OK, DOWN, DOWN, TOO_FEW, OK]


@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_run_keeps_its_place_in_the_queue_with_any_timeout_of_its_election(
    lab: Lab, faults: Faults, timeout: float
) -> None:
    leader, other = lab.actor(), lab.actor()
    lease = await leader(lambda client: client.election("a").campaign())
    election = other.client.election("a", timeout=timeout)
    terms: list[int] = []

    def lead(lease: Any) -> None:
        terms.append(lease.fence)
        election.stop()

    async def lead_in_task(lease: Any) -> None:
        lead(lease)

    running = lab.start(other, lambda _: election.run(lead if lab.runtime == "threads" else lead_in_task))

    await lab.until_waiting("a", 1)
    await asyncio.sleep(0.05)
    assert faults.count("release") == 0
    await leader(lambda _: lease.release())
    async with asyncio.timeout(30):
        await running

    assert terms[0] > lease.fence


async def test_run_ends_when_the_client_is_closed_while_it_waits(lab: Lab) -> None:
    leader, other = lab.actor(), lab.actor()
    await leader(lambda client: client.election("a").campaign())
    running = lab.start(other, lambda client: client.election("a").run(_never(lab)))
    await lab.until_waiting("a", 1)

    closing = other.client.close
    await (closing() if lab.runtime == "asyncio" else asyncio.to_thread(closing))

    async with asyncio.timeout(30):
        await running


async def test_a_stopped_election_does_not_run_again(lab: Lab) -> None:
    actor = lab.actor()
    election = actor.client.election("a")
    await actor(lambda _: election.stop())

    await actor(lambda _: election.run(_never(lab)))

    assert election.stopped


async def test_the_default_store_has_elections_too() -> None:
    election = holdfast.election("a", ttl=5)

    assert isinstance(election, holdfast.Election)
    assert election.leader() is None
    holdfast.default_client().close()


def test_an_observer_works_in_a_forked_child(tmp_path: Path) -> None:
    code = f"""
import os, holdfast
election = holdfast.Client("sqlite://{tmp_path}/locks.db").election("a")
changes = election.observe(every={POLL_INTERVAL})
assert next(changes) is None
if os.fork() == 0:
    os._exit(0 if next(changes).pid == os.getppid() else 1)
with election:
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert (result.stdout, result.stderr) == ("0\n", "")


async def test_one_step_of_an_observer_can_be_given_up_without_ending_it() -> None:
    async with holdfast.AsyncClient("memory://steps") as client:
        election = client.election("a")
        changes = election.observe(every=POLL_INTERVAL)
        assert await anext(changes) is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5 * POLL_INTERVAL):
                await anext(changes)

        async with election as lease:
            leader = await anext(changes)

        assert leader is not None
        assert leader.term == lease.fence


# ── stops and cancellations in asyncio ───────────────────────────────────────────────────────────────────────────


async def lead_forever(lease: Any) -> None:
    await asyncio.Event().wait()


async def until_led(client: Any) -> int:
    async def is_led() -> bool:
        return bool((await client.inspect("a")).holders)

    await until(is_led, "a client leads")
    return int((await client.inspect("a")).holders[0].fence)


async def test_stopping_cancels_the_work_and_resigns_before_run_returns() -> None:
    async with holdfast.AsyncClient("memory://stop") as client:
        election = client.election("a")
        running = asyncio.create_task(election.run(lead_forever))
        await until_led(client)

        election.stop()
        await running

        assert await election.leader() is None
        assert running.cancelling() == 0


async def test_a_cancellation_from_elsewhere_is_raised_by_run() -> None:
    async with holdfast.AsyncClient("memory://cancel") as client:
        election = client.election("a")
        running = asyncio.create_task(election.run(lead_forever))
        await until_led(client)

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert await election.leader() is None


async def test_a_cancellation_together_with_a_stop_is_raised_by_run() -> None:
    async with holdfast.AsyncClient("memory://both") as client:
        election = client.election("a")
        running = asyncio.create_task(election.run(lead_forever))
        await until_led(client)

        election.stop()
        await asyncio.sleep(0)  # lets the stop begin
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running


async def test_work_that_stops_its_own_election_may_end_in_its_own_time() -> None:
    async with holdfast.AsyncClient("memory://own") as client:
        election = client.election("a")
        ends: list[str] = []

        async def stop_at_once(lease: Any) -> None:
            election.stop()
            ends.append("without waiting")

        async def stop_and_wait(lease: Any) -> None:
            election.stop()
            try:
                await asyncio.sleep(30)
            finally:
                ends.append("cancelled")

        await election.run(stop_at_once)
        election = client.election("a")
        await election.run(stop_and_wait)
        await asyncio.sleep(0)  # no callback remains that would run later

        assert ends == ["without waiting", "cancelled"]
        assert await election.leader() is None


async def test_a_loss_and_a_stop_at_once_end_run_without_an_error() -> None:
    async with holdfast.AsyncClient("memory://loss") as client:
        election = client.election("a", ttl=0.3)
        running = asyncio.create_task(election.run(lead_forever))
        term = await until_led(client)

        await client.break_lock("a", term)
        lease = election._kept[next(iter(election._kept))][-1]
        await lease.wait_lost()
        election.stop()

        async with asyncio.timeout(30):
            await running
        assert await election.leader() is None


async def test_a_waiting_run_is_stopped_at_once() -> None:
    url = "memory://waiting"
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other, other.election("a"):
        election = client.election("a")
        running = asyncio.create_task(election.run(lead_forever))
        await until(lambda: _waiters(client, 1), "it waits")

        election.stop()
        async with asyncio.timeout(0.5):
            await running

        await until(lambda: _waiters(client, 0), "it has left the queue")


async def _waiters(client: Any, count: int) -> bool:
    return len((await client.inspect("a")).waiters) == count
