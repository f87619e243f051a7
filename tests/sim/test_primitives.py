"""A primitive built on locks breaks its promise in a simulated world: lock_all, periods, owners and others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.checking import report
from holdfast_lab.cli import WORKLOADS as NAMED
from holdfast_lab.sim import faults, replay
from holdfast_lab.sim.exhaustive import Fate, Size, search_all
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import SERVERS, Plan, lacks_of, run
from holdfast_lab.sim.workload import USUAL, WORKLOADS

SLOW = ("redlock", "zookeeper")  # one world takes as long as five of the others

# The promise that each workload tests, and an event that shows it.
PROMISES: dict[str, tuple[str, type]] = {
    "lock_all": ("whole groups", h.MemberGranted),
    "election": ("growing terms", h.Elected),
    "once_per": ("single runs", h.ClaimEnded),
    "once": ("single starts", h.RunStarted),
    "lock_delay": ("lock delays", h.Lost),
    "revoke": ("revocations received", h.RevokeReceived),
    "owner": ("mutual exclusion", h.Granted),
    "detect_deadlocks": ("proven deadlocks", h.AcquireFailed),
    "renew(ttl)": ("mutual exclusion", h.Renewed),
    "min_hold": ("minimum holds", h.ReleaseEnded),
    "transfer": ("single adoptions", h.AcquireFailed),
}


def supports(backend: str, workload: str) -> bool:
    return any(name not in lacks_of(SERVERS[backend]) for name in WORKLOADS[workload].primitives)


POSSIBLE = [(backend, name) for backend in SERVERS for name in WORKLOADS if name != "locks" and supports(backend, name)]
# `everything` runs on every store. Of the other workloads, each store has a third, and memory has all: they differ in
# the engine more than in the stores. `make test-all` has all workloads on the first method of each store.
CASES = [
    (backend, name)
    if backend == "memory" or name == "everything" or number % 3 == 0
    else pytest.param(backend, name, marks=pytest.mark.extra)
    for number, (backend, name) in enumerate(POSSIBLE)
    if "-" not in backend or name == "everything" or number % 3 == 0
]
CALLERS = ("callers", "free_callers", "brief_callers", "callers_renew")
LOCAL = [backend for backend in SERVERS if backend.endswith("-local")]
CASES += [("memory", "callers"), *((backend, name) for backend in LOCAL for name in CALLERS)]


def test_each_primitive_has_a_workload_that_the_command_accepts() -> None:
    assert set(PROMISES) == set(WORKLOADS) - {"locks", *CALLERS, "free", "everything"}
    assert tuple(WORKLOADS) == NAMED
    assert WORKLOADS["everything"].primitives == tuple(PROMISES)
    assert not USUAL.primitives


def test_a_ticket_that_the_store_refused_is_not_taken_over_by_another_caller() -> None:
    """Its own caller requests it again. World 10021 failed when two callers used the ticket."""
    ran = run(Plan(backend="redis-local", workload=WORKLOADS["brief_callers"], faults=faults.ALL), 10021)

    assert ran.failure is None, ran.error or report(ran.history, ran.verdict)


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_worlds_keep_every_promise(backend: str, name: str) -> None:
    plan = Plan(backend=backend, workload=WORKLOADS[name])
    # `make sim` runs 10,000 of `everything`, which has all primitives.
    for seed in range(2 if name == "everything" and backend not in SLOW else 1):
        ran = run(plan, seed)
        assert ran.failure is None, f"seed {seed}: {ran.error or report(ran.history, ran.verdict)}"


def test_worlds_with_several_callers_of_each_client_keep_every_promise() -> None:
    """Callers of one client with the same owner hold a lock together, with one fence; others are in a deadlock."""
    plan = Plan(backend="memory", workload=replace(WORKLOADS["everything"], callers=3))
    for seed in range(50, 54):
        ran = run(plan, seed)
        assert ran.failure is None, f"seed {seed}: {ran.error or report(ran.history, ran.verdict)}"


@pytest.mark.parametrize("backend", [backend for backend, name in POSSIBLE if name == "lock_delay"])
def test_a_lock_with_a_delay_is_granted_on_every_backend_that_has_delays(backend: str) -> None:
    plan = Plan(backend=backend, workload=WORKLOADS["lock_delay"])
    histories = (run(plan, seed).history for seed in range(5))

    assert any(isinstance(event, h.Granted) and event.delay for history in histories for event in history)


@pytest.mark.parametrize("name", PROMISES)
def test_a_workload_tests_its_promise(name: str) -> None:
    tested: Counter[str] = Counter()
    happened: Counter[type] = Counter()
    promise, event = PROMISES[name]
    for seed in range(4):
        ran = run(Plan(backend="memory", workload=WORKLOADS[name]), seed)
        tested.update(ran.verdict.broken.keys())
        happened.update(type(event) for event in ran.history)

    assert tested[promise] >= 3
    assert happened[event] >= 3


def test_leases_of_one_owner_overlap_and_delays_happen() -> None:
    overlapping = delayed = 0
    for seed in range(15):
        held: dict[int, h.Granted] = {}
        for event in run(Plan(backend="memory", workload=WORKLOADS["owner"]), seed).history:
            if isinstance(event, h.Granted):
                overlapping += any(other.lock == event.lock and event.owner == other.owner for other in held.values())
                held[event.ticket] = event
            elif isinstance(event, h.ReleaseStarted | h.Lost):
                held.pop(event.ticket, None)
        history = run(Plan(backend="memory", workload=WORKLOADS["lock_delay"]), seed).history
        with_delay = {event.ticket for event in history if isinstance(event, h.Granted) and event.delay}
        delayed += sum(isinstance(event, h.Lost) and event.ticket in with_delay for event in history)

    assert overlapping >= 35
    assert delayed >= 7


def test_the_default_workload_uses_no_other_primitives() -> None:
    history = run(Plan(backend="memory"), 3).history

    assert not any(
        isinstance(
            event, h.MemberGranted | h.Elected | h.ClaimStarted | h.OnceCalled | h.RevokeStarted | h.RevokeReceived
        )
        for event in history
    )


def test_a_replay_keeps_the_primitives_of_its_workload() -> None:
    plan = Plan(backend="memory", workload=WORKLOADS["everything"])
    ran = run(plan, 5)

    again = replay.from_text(replay.to_text(replay.Replay(plan, ran.decisions)))

    assert run(again.plan, decisions=again.decisions).history == ran.history


def test_two_clients_with_two_locks_each_keep_every_promise_with_one_fault() -> None:
    fates = (Fate.DONE, Fate.UNANSWERED, Fate.LATE, Fate.CRASHED)

    searched = search_all(Plan(backend="memory", workload=WORKLOADS["lock_all"]), Size(faults=1, fates=fates))

    assert searched.is_complete
    assert searched.states > 50
    assert not searched.failures


def test_a_holder_of_two_locks_without_a_clock_is_found_by_exhaustive_search() -> None:
    plan = MUTANTS["trusts-the-server-only"].apply(Plan(workload=WORKLOADS["lock_all"]))

    searched = search_all(plan, Size(faults=1, fates=(Fate.DONE, Fate.PAUSED)))

    assert "mutual exclusion" in {run.failure for run in searched.failures}
