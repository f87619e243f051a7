"""1,000 attempts with random outcomes: the numbers of all exporters equal the events, and the gauges return to zero."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import holdfast
import holdfast.prometheus
from holdfast_lab.conformance.event_ledger import Ledger
from holdfast_lab.conformance.lab import until
from tests.support.faulty import DOWN, LOST, NO_REPLY, OK, Faults
from tests.support.processes import eventually
from tests.support.telemetry import Telemetry, total

VERBS = ("try_acquire", "try_acquire_all", "release", "renew")
GAUGES = ("holdfast.lock.held", "holdfast.lock.waiting", "holdfast.client.pending_releases")


class Numbers:
    """One client with both exporters and a ledger of its events."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ledger = Ledger(client)
        self.telemetry = Telemetry()
        self.telemetry.instrument(client, name="c")
        self.registry = CollectorRegistry()
        holdfast.prometheus.instrument(client, self.registry, name="c")

    def is_quiet(self) -> bool:
        return self.ledger.is_balanced() and self.client.stats()[:5] == (0, 0, 0.0, 0.0, 0)

    def check(self) -> None:
        self.ledger.check()
        for gauge in GAUGES:
            assert self.telemetry.points()[gauge], gauge
            assert self.telemetry.total(gauge) == 0
            assert total(self.registry, gauge.replace(".", "_")) == 0
        kinds, outcomes = self.ledger.kinds, self.ledger.outcomes
        for name, expected in (
            ("acquire", kinds["acquiring"]),
            ("hold", kinds["acquired"]),
        ):
            assert self.telemetry.total(f"holdfast.lock.{name}.duration") == expected
            assert total(self.registry, f"holdfast_lock_{name}_duration_seconds_count") == expected
        for key, expected in outcomes.items():
            kind, _, outcome = key.partition(": ")
            if kind in ("not acquired", "lost", "released"):
                name = "acquire" if kind == "not acquired" else "hold"
                assert self.telemetry.total(f"holdfast.lock.{name}.duration", outcome=outcome) == expected
                count = f"holdfast_lock_{name}_duration_seconds_count"
                assert total(self.registry, count, outcome=outcome) == expected
        requests = "holdfast_client_request_duration_seconds_count"
        assert self.telemetry.total("holdfast.client.request.duration") == total(self.registry, requests) > 0
        assert len(self.telemetry.spans("acquire")) == kinds["acquiring"]
        assert len(self.telemetry.spans("hold")) == kinds["acquired"]


@pytest.fixture
def rng(faults: Faults) -> random.Random:
    rng = random.Random(7)  # noqa: S311
    outcomes_of_requests = [OK] * 12 + [DOWN, LOST, NO_REPLY]
    for verb in VERBS:
        faults.plan(verb, *(rng.choice(outcomes_of_requests) for _ in range(3000)), OK)
    return rng


def end_outage(faults: Faults) -> None:
    for verb in VERBS:
        faults.plan(verb, OK)


def make_lock(client: Any, rng: random.Random, number: int) -> Any:
    name = f"lock:{rng.randrange(5)}"
    options: Any = {"timeout": rng.choice([0, 0.005, 0.02]), "ttl": 20}
    return client.lock_all([name, "lock:9"], **options) if number % 7 == 0 else client.lock(name, **options)


async def test_tasks_that_are_cancelled(faulty_url: str, faults: Faults, rng: random.Random) -> None:
    async with holdfast.AsyncClient(faulty_url) as client:
        numbers = Numbers(client)

        async def attempt(number: int) -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                async with make_lock(client, rng, number):
                    await asyncio.sleep(rng.random() * 0.002)

        tasks = []
        for number in range(1000):
            tasks.append(asyncio.create_task(attempt(number)))
            if number % 3 == 0:
                rng.choice(tasks).cancel()
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks, return_exceptions=True)
        end_outage(faults)
        await until(lambda: asyncio.sleep(0, numbers.is_quiet()), "all attempts have ended")
        numbers.check()
        assert numbers.ledger.outcomes["not acquired: cancelled"] > 0


def test_threads_with_forks_in_the_middle(faulty_url: str, faults: Faults, rng: random.Random) -> None:
    with holdfast.Client(faulty_url) as client:
        numbers = Numbers(client)
        statuses: list[int] = []

        def fork() -> None:
            child = os.fork()
            if child == 0:
                try:
                    held = total(numbers.registry, "holdfast_lock_held") + total(
                        numbers.registry, "holdfast_lock_acquire_duration_seconds_count"
                    )
                    os._exit(int(held))
                except BaseException:
                    os._exit(99)
            statuses.append(os.waitpid(child, 0)[1])

        def work(seed: int) -> None:
            thread_rng = random.Random(seed)  # noqa: S311
            for number in range(125):
                with contextlib.suppress(holdfast.HoldfastError), make_lock(client, thread_rng, number):
                    if number == 50 and seed < 3:
                        fork()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fork()
        end_outage(faults)
        eventually(numbers.is_quiet)
        numbers.check()
        assert statuses == [0] * len(statuses)
