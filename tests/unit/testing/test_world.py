"""A world with threads: nothing happens before the clock is moved, everything that is due happens then, in order."""

from __future__ import annotations

import contextlib
import pickle
import threading
import unittest
from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast.testing import World

Step = Callable[..., None]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def test_a_lease_is_renewed_while_the_clock_moves(world: World) -> None:
    client = world.client()
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None

    world.clock.advance(3600)

    world.assert_held("a", by=client)
    assert lease.remaining > 19
    assert [event.kind for event in world.events(client)].count("renewed") == pytest.approx(3600 / 9.9, abs=2)
    lease.release()
    world.assert_free("a")


def test_leases_that_are_due_soon_after_each_other_are_renewed_in_one_request(world: World) -> None:
    client = world.client()
    requests: list[str] = []
    client._observe_requests(lambda operation, *_: requests.append(operation))
    with contextlib.ExitStack() as stack:
        for number in range(20):
            stack.enter_context(client.lock(f"a{number}", ttl=30))
            world.clock.advance(0.04)
        world.clock.advance(3600)

    assert requests.count("renew") == pytest.approx(3600 / 9.9, abs=5)


def test_a_lease_without_renewal_is_lost_when_its_time_is_over(world: World) -> None:
    lost: list[str] = []
    client = world.client()
    lease = client.lock("a", ttl=30, renew=False, on_lost=lambda lease: lost.append(lease.name)).acquire()
    assert lease is not None

    world.clock.advance(29)
    assert not lease.lost
    world.clock.advance(1)

    assert lost == ["a"]
    assert world.events(client)[-1].outcome == "expired"
    with pytest.raises(holdfast.LockLost):
        lease.check()


def test_a_waiting_thread_times_out_when_the_clock_reaches_its_timeout(world: World) -> None:
    client = world.client()
    with world.hold("a"):
        waiter = world.start(client.lock("a").acquire, timeout=5)

        world.clock.advance(4.9)
        assert not waiter.done
        with pytest.raises(holdfast.UsageError, match="still waits"):
            waiter.result()
        world.clock.advance(0.1)

        assert waiter.result() is None
        assert world.clock.now == 5


def test_a_release_wakes_a_waiting_thread_without_the_clock(world: World) -> None:
    holder = world.hold("a")
    client = world.client()
    waiter = world.start(client.lock("a").acquire)

    holder.release()

    assert waiter.done
    world.assert_held("a", by=client)
    assert world.clock.now == 0


def test_threads_that_the_program_starts_itself_wake_too(world: World) -> None:
    client = world.client()
    granted: list[float] = []

    def work() -> None:
        with client.lock("a"):
            granted.append(world.clock.now)

    holder = world.hold("a", ttl=30, renew=False)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    world.wait_for_waiters("a", 3)

    world.clock.advance(31)

    assert holder.lost
    for thread in threads:
        thread.join(30)
    assert len(granted) == 3
    assert granted[0] == pytest.approx(29.7)  # the holder knows the end of its lease, and released the lock then


def test_a_wait_of_the_tests_own_thread_moves_the_clock(world: World) -> None:
    with world.hold("a"), pytest.raises(holdfast.AcquireTimeout, match=r"5\.0 s"), world.client().lock("a", timeout=5):
        pass

    assert world.clock.now == 5


def test_an_endless_wait_of_the_tests_own_thread_is_an_error(world: World) -> None:
    client = world.client()

    with world.hold("a"), pytest.raises(holdfast.UsageError, match="nothing in the world ends this wait"):
        client.lock("a").acquire()

    world.assert_free("a")


def test_a_lease_that_is_lost_is_reported_at_once_and_its_lock_is_free(world: World) -> None:
    lost: list[holdfast.Lease] = []
    client = world.client()
    lease = client.lock("a", on_lost=lost.append).acquire()
    assert lease is not None

    world.lose(lease)

    assert lost == [lease]
    assert lease.lost
    world.assert_free("a")
    assert [event.kind for event in world.events(client)] == ["acquiring", "acquired", "lost"]


def test_all_leases_of_a_group_are_lost_together(world: World) -> None:
    leases = world.client().lock_all(["a", "b"]).acquire()
    assert leases is not None

    world.lose(leases)

    assert leases.lost
    world.assert_free("a")
    world.assert_free("b")


def test_an_expired_lease_passes_the_lock_to_the_next_waiter(world: World) -> None:
    first, second = world.client(), world.client()
    lease = first.lock("a").acquire()
    assert lease is not None
    waiter = world.start(second.lock("a").acquire)

    world.expire(lease)

    assert lease.lost
    assert world.events(first)[-1].outcome == "expired"
    assert waiter.done
    world.assert_held("a", by=second)


def test_a_holder_learns_that_its_lock_was_stolen_at_its_next_renewal(world: World) -> None:
    client = world.client()
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None
    waiter = world.start(world.client().lock("a").acquire)

    thief = world.steal("a")

    assert lease.held  # the client has not detected it yet
    assert thief.fence > lease.fence
    world.clock.advance(11)
    assert lease.lost
    assert not waiter.done
    thief.release()
    assert waiter.done


def test_a_client_that_is_cut_off_loses_its_lease_and_heals(world: World) -> None:
    client, other = world.client(), world.client()
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None
    waiter = world.start(other.lock("a").acquire)

    world.partition(client)
    world.clock.advance(5)
    with pytest.raises(holdfast.BackendUnavailable, match="cut this client off"):
        client.lock("b").acquire()
    world.clock.advance(26)

    assert lease.lost
    assert waiter.done
    world.assert_held("a", by=other)
    world.heal()
    with client.lock("b"):
        world.assert_held("b", by=client)


def test_a_partition_that_heals_in_time_costs_no_lease(world: World) -> None:
    client = world.client()
    with client.lock("a", ttl=30) as lease:
        world.partition(client)
        world.clock.advance(25)
        world.heal(client)
        world.clock.advance(60)

        lease.check()
    assert "renewal failed" in [event.kind for event in world.events(client)]


def test_a_paused_client_renews_nothing_and_detects_its_loss_by_the_clock(world: World) -> None:
    client, other = world.client(), world.client()
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None

    world.pause(client)
    waiter = world.start(other.lock("a").acquire)
    world.clock.advance(31)

    assert waiter.done
    assert lease.lost
    assert "lost" not in [event.kind for event in world.events(client)]  # nothing in this process runs
    world.heal()
    assert world.events(client)[-1].kind == "lost"


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_answer_of_an_acquire_is_repeated(world: World, applied: bool) -> None:  # noqa: FBT001
    client = world.client()
    world.fail_next("try_acquire", holdfast.OutcomeUnknown, applied=applied)

    with client.lock("a"):
        world.assert_held("a", by=client)

    world.assert_free("a")


def test_an_acquire_raises_if_its_server_is_unavailable(world: World) -> None:
    client, other = world.client(), world.client()
    world.fail_next("try_acquire", holdfast.BackendUnavailable, client=client)

    with other.lock("a"):
        pass
    with pytest.raises(holdfast.BackendUnavailable):
        client.lock("a").acquire()

    with client.lock("a"):
        pass


def test_a_release_without_an_answer_is_repeated_in_the_background(world: World) -> None:
    client = world.client()
    lease = client.lock("a").acquire()
    assert lease is not None
    world.fail_next("release", holdfast.OutcomeUnknown)

    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()

    world.clock.advance(1)
    world.assert_free("a")


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_answer_about_a_record_is_repeated_and_the_body_runs_once(world: World, applied: bool) -> None:  # noqa: FBT001
    client = world.client()
    charge = client.once("charge:7", result=True)
    world.fail_next("swap_record", holdfast.OutcomeUnknown, applied=applied)

    outcomes = [charge.run(lambda: "paid"), charge.run(lambda: "paid twice")]

    assert [(outcome.ran, outcome.value) for outcome in outcomes] == [(True, "paid"), (False, "paid")]
    assert world._shared.failures == []


def test_once_raises_before_its_body_if_the_records_are_unavailable(world: World) -> None:
    runs: list[str] = []
    charge = world.client().once("charge:7")
    world.fail_next("swap_record", holdfast.BackendUnavailable)

    with pytest.raises(holdfast.BackendUnavailable):
        charge.run(lambda: runs.append("first"))
    charge.run(lambda: runs.append("second"))

    assert runs == ["second"]


def test_a_run_counts_as_interrupted_when_its_completion_got_no_answer(world: World) -> None:
    charge = world.client().once("charge:7")

    def pay() -> None:
        for _ in range(100):  # the request is repeated
            world.fail_next("swap_record", holdfast.OutcomeUnknown)

    with pytest.raises(holdfast.OutcomeUnknown):
        charge.run(pay)
    world._shared.failures.clear()
    with pytest.raises(holdfast.OnceInterrupted):
        charge.run(pay)


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_answer_about_a_period_is_repeated(world: World, applied: bool) -> None:  # noqa: FBT001
    @world.client().once_per("1h", name="report", skipped=False)
    def report() -> bool:
        return True

    world.fail_next("advance_register", holdfast.OutcomeUnknown, applied=applied)

    assert [report(), report()] == [True, False]
    assert world._shared.failures == []


def test_planned_failures_are_checked(world: World) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="verb must be one of"):
        world.fail_next("acquire", holdfast.OutcomeUnknown)
    with pytest.raises(holdfast.ConfigurationError, match="applied=True needs OutcomeUnknown"):
        world.fail_next("renew", holdfast.BackendUnavailable, applied=True)


def test_requests_of_the_world_itself_do_not_use_up_a_planned_failure(world: World) -> None:
    client = world.client()
    with client.lock("b"), world.hold("a"):
        world.fail_next("renew", holdfast.BackendUnavailable)
        world.clock.advance("1m")

    assert [event.kind for event in world.events(client)].count("renewal failed") == 1


def test_a_lock_that_the_world_holds_can_be_stolen(world: World) -> None:
    assert world.steal("a").fence < world.steal("a").fence


def test_the_clock_does_not_go_back(world: World) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="a clock does not go back"):
        world.clock.advance(-1)


def test_threads_that_sleep_end_with_the_world() -> None:
    with World() as world:
        sleeper = world.start(world.clock.sleep, 10)
        assert not sleeper.done

    with pytest.raises(holdfast.UsageError, match="the world is closed"):
        sleeper.result()


def test_the_assertions_fail_if_the_state_differs(world: World) -> None:
    client, other = world.client(), world.client()

    with pytest.raises(AssertionError, match="lock 'a' is not held: its holder is none; 0 wait"):
        world.assert_held("a")
    with client.lock("a"):
        with pytest.raises(AssertionError, match="lock 'a' is not free: its holder is"):
            world.assert_free("a")
        with pytest.raises(AssertionError, match="lock 'a' is not held by <WorldClient"):
            world.assert_held("a", by=other)
        with pytest.raises(AssertionError, match="cannot be held by the world"):
            world.hold("a")


def test_callers_with_a_lock_exclude_each_other(world: World) -> None:
    entered: list[int] = []

    def program(step: Step) -> None:
        with world.client().lock("a"):
            entered.append(1)
            step()

    world.assert_excluded(program)

    assert len(entered) == 8


def test_callers_without_a_lock_are_found(world: World) -> None:
    def program(step: Step) -> None:
        with world.client().lock("a"):
            pass
        step()

    with pytest.raises(AssertionError, match="8 of 8 callers were in the protected work at the same time"):
        world.assert_excluded(program)


def test_a_program_that_never_steps_proves_no_exclusion(world: World) -> None:
    with pytest.raises(AssertionError, match="no caller has done a step"):
        world.assert_excluded(lambda _: None)


def test_a_program_that_checks_before_each_step_stops(world: World) -> None:
    client = world.client()

    def program(step: Step) -> None:
        with client.lock("a") as lease:
            for _ in range(3):
                lease.check()
                step()

    world.assert_checks_lease(program)


def test_a_program_that_returns_after_a_loss_stops(world: World) -> None:
    client = world.client()

    def program(step: Step) -> None:
        lease = client.lock("a").acquire()
        assert lease is not None
        for _ in range(3):
            if lease.lost:
                return
            step()
        lease.release()

    world.assert_checks_lease(program)


def test_a_program_that_continues_with_another_lease_is_accepted(world: World) -> None:
    client = world.client()

    def program(step: Step) -> None:
        for number in range(3):
            with contextlib.suppress(holdfast.LockLost), client.lock(f"item:{number}") as lease:
                lease.check()
                step()
                lease.check()
                step()

    world.assert_checks_lease(program)


def test_a_program_with_several_locks_checks_all_of_them(world: World) -> None:
    client = world.client()

    def right(step: Step) -> None:
        with client.lock_all(["a", "b"]) as leases:
            for _ in range(2):
                leases.check()
                step()

    def wrong(step: Step) -> None:
        with client.lock("a"), client.lock("b") as inner:
            inner.check()
            step()

    world.assert_checks_lease(right)
    with pytest.raises(AssertionError, match="lost after it was acquired"):
        world.assert_checks_lease(wrong)


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ([False, True, True], "step 1 was done although the lock was lost after it was acquired"),
        ([True, False, True], "step 2 was done although the lock was lost after step 1"),
        ([True, True, False], "step 3 was done although the lock was lost after step 2"),
    ],
)
def test_a_program_that_forgets_a_check_is_found(world: World, checks: list[bool], message: str) -> None:
    client = world.client()

    def program(step: Step) -> None:
        with client.lock("a") as lease:
            for is_checked in checks:
                if is_checked:
                    lease.check()
                step()

    with pytest.raises(AssertionError, match=message):
        world.assert_checks_lease(program)


def test_a_step_outside_of_the_lock_is_found(world: World) -> None:
    client = world.client()

    def program(step: Step) -> None:
        with client.lock("a") as lease:
            lease.check()
            step()
        step()

    with pytest.raises(
        AssertionError,
        match=r"step 2 was done while no lock of this world was held: does the .* use a client of `world.client",
    ):
        world.assert_checks_lease(program)
    with pytest.raises(AssertionError, match="has done no step"):
        world.assert_checks_lease(lambda _: None)


def test_an_error_of_the_program_is_raised(world: World) -> None:
    def program(step: Step) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.assert_checks_lease(program)
    with pytest.raises(ZeroDivisionError):
        world.assert_excluded(program)


def test_jobs_of_a_period_run_by_the_clock_of_the_world(world: World) -> None:
    runs: list[float] = []

    @world.client().once_per("1h", name="job")
    def job() -> None:
        runs.append(world.clock.now)

    for _ in range(8):
        job()
        world.clock.advance(1800)

    assert runs == [0, 3600, 7200, 10800]


def test_a_key_is_done_once_until_its_retention_is_over(world: World) -> None:
    runs: list[float] = []
    once = world.client().once("charge:4711", retention="1d", skipped="skipped")

    once.run(runs.append, world.clock.now)
    world.clock.advance("23h")
    assert once.run(runs.append, world.clock.now).value == "skipped"
    world.clock.advance("2h")
    once.run(runs.append, world.clock.now)

    assert runs == [0, 25 * 3600]


def test_a_leader_that_is_cut_off_is_replaced(world: World) -> None:
    first, second = world.client(), world.client()
    lease = first.election("a").acquire()
    assert lease is not None
    campaign = world.start(second.election("a").acquire)

    world.partition(first)
    world.clock.advance(31)

    assert campaign.done
    world.assert_held("a", by=second)


def test_a_thread_that_waits_for_real_time_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.clock.SETTLE_MAX", 0.05)
    go = threading.Event()

    with pytest.raises(holdfast.UsageError, match=r"the thread 'Event\.wait' neither waits for the clock"):
        world.start(go.wait)

    go.set()


def test_objects_of_another_world_are_refused(world: World) -> None:
    with World() as other, other.client().lock("a") as lease, holdfast.Client("memory://") as plain:
        with pytest.raises(holdfast.UsageError, match="is not held in this world"):
            world.lose(lease)
        with pytest.raises(holdfast.UsageError, match="is not a client of this world"):
            world.pause(plain)
        with pytest.raises(holdfast.UsageError, match="cannot be pickled"):
            pickle.dumps(other.client())


class UnittestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.world = self.enterContext(World())
        self.client = self.world.client()

    def test_a_world_works_with_unittest(self) -> None:
        with self.client.lock("a"):
            self.world.assert_held("a", by=self.client)
        self.world.assert_free("a")
