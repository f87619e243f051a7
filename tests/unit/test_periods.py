"""Periods of `once_per`. Hazard: a lost reply causes a second run, or skips the run of a period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast
from holdfast.core.periods import Period, make_period
from holdfast_lab.conformance.lab import Actor, Lab
from tests.support.faulty import BUG, DOWN, LOST, NO_REPLY, OK, TOO_FEW, Faults


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "seconds"),
    [
        ("30s", 30),
        (" 15 m ", 900),
        ("1h", 3600),
        ("1d", 86400),
        ("52w", 52 * 7 * 86400),
        ("1.5h", 5400),
        ("60000ms", 60),
        (90, 90),
        (90.0, 90),
        (timedelta(minutes=2), 120),
    ],
)
def test_periods_can_be_written_in_several_ways(period: Any, seconds: int) -> None:
    assert make_period(period, 0) == Period(seconds, 0)


def test_a_period_begins_at_a_multiple_of_its_length() -> None:
    hour = make_period("1h", 0)

    assert hour.number(at("2026-03-29T09:59:59.999")) + 1 == hour.number(at("2026-03-29T10:00:00"))
    assert hour.number(at("2026-03-29T10:00:00")) == hour.number(at("2026-03-29T10:59:59.999"))


def test_an_offset_moves_the_beginning() -> None:
    day = make_period("1d", "3h")
    monday = make_period("1w", "4d")

    assert day.number(at("2026-03-29T02:59:59")) + 1 == day.number(at("2026-03-29T03:00:00"))
    assert day.number(at("2026-03-29T03:00:00")) == day.number(at("2026-03-30T02:59:59"))
    assert monday.number(at("2026-03-29T23:59:59")) + 1 == monday.number(at("2026-03-30T00:00:00"))


def test_a_time_before_the_first_period_has_a_number_too() -> None:
    assert make_period("1d", "3h").number(0.0) == -1


class Job:
    def __init__(self, lab: Lab, actor: Actor) -> None:
        self.runs = 0

        def plain() -> str:
            self.runs += 1
            return "ran"

        async def awaited() -> str:
            return plain()

        decorate = actor.client.once_per("52w", name="job", skipped="skipped")
        self.call = decorate(plain if lab.runtime == "threads" else awaited)


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY])
async def test_a_claim_without_an_answer_is_repeated_with_the_same_nonce(
    lab: Lab, faults: Faults, outcome: str
) -> None:
    actor = lab.actor()
    job = Job(lab, actor)
    faults.plan("advance_register", outcome, OK)

    assert await actor(lambda _: job.call()) == "ran"

    assert await actor(lambda _: job.call()) == "skipped"
    assert job.runs == 1


async def test_a_claim_without_any_answer_raises_and_the_function_does_not_run(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    job = Job(lab, actor)
    faults.plan("advance_register", NO_REPLY)

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda _: job.call())

    faults.plan("advance_register", OK)
    assert await actor(lambda _: job.call()) == "skipped", "the claim may have been executed"
    assert job.runs == 0


@pytest.mark.parametrize(
    ("outcomes", "error"),
    [
        ([DOWN], holdfast.BackendUnavailable),
        ([TOO_FEW, TOO_FEW], holdfast.QuorumError),  # repeated once
        ([BUG], ZeroDivisionError),
    ],
)
async def test_a_claim_that_was_not_executed_does_not_use_up_its_period(
    lab: Lab, faults: Faults, outcomes: list[str], error: type[Exception]
) -> None:
    actor = lab.actor()
    job = Job(lab, actor)
    faults.plan("advance_register", *outcomes, OK)

    with pytest.raises(error):
        await actor(lambda _: job.call())

    assert job.runs == 0
    assert await actor(lambda _: job.call()) == "ran"
    assert (await lab.state("job")).holders == ()


async def test_a_run_without_an_answer_for_its_lock_raises_and_its_period_is_used_up(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    job = Job(lab, actor)
    faults.plan("try_acquire", DOWN, OK)

    with pytest.raises(holdfast.BackendUnavailable):
        await actor(lambda _: job.call())

    assert await actor(lambda _: job.call()) == "skipped"
    assert job.runs == 0
