"""The simulator does not inject the faults that it reports, or lets dead processes run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.core.locks import LockOptions
from holdfast.core.tickets import Claim, LeaseGone, Live
from holdfast.errors import BackendError
from holdfast_lab.checking import history as h
from holdfast_lab.checking import report
from holdfast_lab.sim import faults
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.recorder import Recorder
from holdfast_lab.sim.run import SERVERS, Plan, run
from holdfast_lab.sim.runtime import SimRuntime
from holdfast_lab.sim.scenarios import SmallWorld
from holdfast_lab.sim.workload import Workload
from holdfast_lab.sim.world import World

BACKENDS = tuple(SERVERS)
SLOW = ("redlock", "zookeeper")
EVENTS: dict[str, type] = {"pause": h.Paused, "crash": h.Crashed, "cut": h.Unreachable, "break_lock": h.StateLost}


def only(kind: str, backend: str) -> Plan:
    """Worlds in which this fault is frequent, and no other happens."""
    often = faults.only(faults.ALL, frozenset({kind}))
    probability = getattr(often, kind)
    return Plan(
        backend=backend,
        faults=replace(often, **{kind: probability if kind == "drift" else min(0.5, 4 * probability)}),
        enable=1.0,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_worlds_with_all_faults_keep_every_promise(backend: str) -> None:
    for seed in range(3 if backend in SLOW else 12):  # `make sim` runs 10,000 of each
        ran = run(Plan(backend=backend), seed)
        assert ran.failure is None, f"seed {seed}: {ran.error or report(ran.history, ran.verdict)}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_enabled_fault_happens_and_each_is_in_the_history(backend: str) -> None:
    # All stores have the same links: all faults on two of them, and a third of the faults on each of the others.
    kinds = faults.KINDS if backend in ("redis", "postgresql") else faults.KINDS[BACKENDS.index(backend) % 3 :: 3]
    for kind in kinds:
        if kind in SERVERS[backend].impossible_faults():
            continue  # see the next test
        happened: Counter[str] = Counter()
        for seed in range(8):
            if happened[kind]:
                break  # the test above checks the promises
            ran = run(only(kind, backend), seed)
            happened.update(ran.happened)
            assert ran.failure is None, f"{kind}: {report(ran.history, ran.verdict)}"
            # A cut in Redlock is mostly of one of several links; see test_redlock_worlds.py.
            if kind in EVENTS and (backend, kind) != ("redlock", "cut"):
                assert sum(type(event) is EVENTS[kind] for event in ran.history) == ran.happened[kind]

        assert set(happened) == {kind}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_that_the_store_cannot_have_does_not_happen(backend: str) -> None:
    impossible = faults.only(faults.ALL, SERVERS[backend].impossible_faults())

    ran = run(Plan(backend=backend, faults=impossible, enable=1.0), 0)

    assert ran.failure is None, report(ran.history, ran.verdict)
    assert not ran.happened


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_client_gets_the_lock_and_no_lease_is_lost_without_faults(backend: str) -> None:
    workload = Workload(variety=False, timeout_max=1000.0, kinds=("lock",))
    ran = run(Plan(backend=backend, faults=faults.CALM, workload=workload), 1)
    statistics = ran.verdict.statistics

    assert ran.failure is None
    assert not ran.happened
    assert statistics.losses == statistics.failures == 0
    assert statistics.grants + statistics.timeouts == statistics.calls == workload.clients * workload.rounds


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_has_half_a_minute_of_virtual_time(backend: str) -> None:
    ran = run(Plan(backend=backend), 2)
    times = [event.at for event in ran.history]

    assert times == sorted(times)
    assert ran.verdict.statistics.seconds > 30
    assert len(set(times)) > 50


def test_a_fast_clock_affects_only_its_own_process() -> None:
    world = World(Choices(decisions=()))
    fast, true = Process(world, "fast", offset=500.0, rate=1.009), Process(world, "true")
    woke: dict[str, float] = {}

    async def sleep(process: Process) -> None:
        await SimRuntime(process, Recorder(world)).sleep(100.0)
        woke[process.name] = world.now

    for process in (fast, true):
        process.start(sleep(process), "worker")
    world.run(200.0)

    assert woke["true"] == pytest.approx(100.0, abs=1e-5)
    assert woke["fast"] == pytest.approx(100.0 / 1.009, abs=1e-5)
    assert (true.now(), fast.now()) == pytest.approx((200.0, 701.8))


# ── dead and paused processes ────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_process_runs_no_clean_up_code() -> None:
    world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    member = world.add("a")
    ticks: list[str] = []

    async def tick() -> None:
        try:
            while True:
                await member.client.runtime.sleep(1.0)
                ticks.append(f"{world.world.now:.0f}")
        finally:
            ticks.append("cleaned up")

    member.start(tick())
    world.world.run(3.5)
    member.process.crash()
    world.world.run(100.0)

    assert ticks == ["1", "2", "3"]
    world.end()


def test_a_paused_process_runs_no_code_until_it_resumes() -> None:
    world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    member = world.add("a")
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await member.client.runtime.sleep(1.0)
            ticks.append(round(world.world.now, 3))

    member.start(tick())
    world.world.run(2.5)
    member.process.pause()
    world.world.run(10.0)
    member.process.resume()
    world.world.run(11.5)

    assert ticks == [1.0, 2.0, 10.0, 11.0]
    world.end()


def test_a_lease_that_a_keeper_worker_handles_first_is_reported_lost_at_its_deadline() -> None:
    """Seed 6640 of `holdfast simulate --backend memory`: the timer was idle and ended."""
    world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    member = world.add("a")
    keeper = member.client.engine._keeper

    async def works() -> None:
        first = await member.client.acquire(member.lock(5.0), 0)
        assert first is not None
        await member.client.release(first)
        await member.client.runtime.sleep(1.0)  # the timer is idle and would end at 1.65 s
        options: LockOptions = {"ttl": 15.0, "renew": False}
        assert await member.client.acquire(member.client.lock("second", options=options), 0)
        keeper._take_due(number=7)  # as a worker does after a request

    member.start(works())
    world.world.run(40.0)

    assert [round(event.at) for event in world.recorder.history if isinstance(event, h.LossReported)] == [16]
    world.end()


def test_a_lease_that_a_renewal_did_not_extend_is_renewed_again_before_its_end() -> None:
    """As on ZooKeeper, where the proof of the session may be old for a while; seed 29 of its worlds."""
    world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    member = world.add("a")
    backend, now = member.client.engine.backend, member.client.runtime.now
    renew = backend.renew
    leases: list[SimLease] = []

    async def extends_late(claims: Sequence[Claim], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        if now() < 9.7:
            return [Live(leases[0]._deadline) for _ in claims]
        return await renew(claims, deadline=deadline)

    async def works() -> None:
        lease = await member.client.acquire(member.lock(10.0), 0)
        assert lease is not None
        leases.append(lease)

    backend.renew = extends_late  # type: ignore[method-assign]
    member.start(works())
    world.world.run(15.0)

    assert leases[0].held
    world.end()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dead_process_has_no_events_in_the_history(backend: str) -> None:
    for seed in range(2):
        down: set[str] = set()
        for event in run(only("crash", backend), seed).history:
            if isinstance(event, h.Crashed):
                down.add(event.client)
            elif isinstance(event, h.Restarted):
                down.discard(event.client)
            elif isinstance(
                event,
                (
                    h.AcquireStarted,
                    h.Granted,
                    h.AcquireFailed,
                    h.Renewed,
                    h.Checked,
                    h.ReleaseStarted,
                    h.LossReported,
                    h.Wrote,
                ),
            ):
                assert event.client not in down


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_that_waits_while_it_holds_a_mutex_is_found(backend: str) -> None:
    world = SmallWorld(Plan(backend=backend), Choices(decisions=()))
    member = world.add("a")

    async def waits() -> None:
        with member.client.runtime.mutex():
            await member.client.runtime.sleep(1.0)

    member.start(waits())

    with pytest.raises(AssertionError, match="waits while it holds a mutex"):
        world.world.run(2.0)
    world.world.held_mutexes = 0
    world.end()


def test_an_endless_loop_is_stopped() -> None:
    world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    member = world.add("a")

    async def spins() -> None:
        while True:
            await member.client.runtime.sleep(0.0)

    member.start(spins())

    with pytest.raises(RuntimeError, match="endless loop"):
        world.world.run(10.0)
    world.end()
