"""`holdfast break`: the wrong lease broken, above all a successor's; or one broken that nobody agreed to."""

from __future__ import annotations

import pytest

from tests.integration.cli.conftest import Place, Screens
from tests.support.processes import Worker, WorkerPool


def test_a_lease_is_broken_and_its_holder_learns_of_it(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = place.run("break", "a", "--yes")

    assert result.status == 0
    assert result.out == f"a, fence {fence}: broken\n"
    assert str(holder.pid) in result.errors  # what it was about to break
    assert place.fences("a") == []
    assert holder.call("lost", lock="a") == {"lost": [fence]}


def test_all_holders_that_were_shown_are_broken_and_waiters_are_let_in(place: Place, pool: WorkerPool) -> None:
    fences = [pool.start(place.url).call("hold", lock="pool", limit=2)["fence"] for _ in range(2)]
    pool.start(place.url).call("wait", lock="pool", limit=2)
    place.await_waiters("pool", 1)

    result = place.run("break", "pool", "--yes", "--json")

    assert (result.status, result.json) == (0, {"lock": "pool", "broken": fences, "gone": []})
    place.await_waiters("pool", 0)
    (successor,) = place.fences("pool")
    assert successor not in fences


def test_fence_names_the_one_holder_to_break(place: Place, pool: WorkerPool) -> None:
    first, second, third = (pool.start(place.url).call("hold", lock="pool", limit=3)["fence"] for _ in range(3))

    result = place.run("break", "pool", "--fence", str(second), "--yes")

    assert (result.status, result.out) == (0, f"pool, fence {second}: broken\n")
    assert str(first) not in result.errors
    assert "2 more, not to be broken" in result.errors
    assert place.fences("pool") == [first, third]


def test_a_fence_that_nobody_holds_breaks_nothing(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = place.run("break", "a", "--fence", str(fence + 1), "--yes")

    assert (result.status, result.out) == (1, "")
    assert result.errors == f"a is not held with fence {fence + 1} (but with {fence}): nothing was broken\n"
    assert place.fences("a") == [fence]


def test_a_free_lock_is_nothing_to_break(place: Place) -> None:
    assert place.run("break", "a", "--yes") == (1, "", "nobody holds a: nothing to break\n")

    as_json = place.run("break", "a", "--yes", "--json")
    assert (as_json.status, as_json.json) == (1, {"lock": "a", "broken": [], "gone": []})


def test_without_a_terminal_and_without_yes_nothing_is_broken(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = place.run("break", "a")

    assert (result.status, result.out) == (2, "")
    assert "say --yes" in result.errors.splitlines()[-1]
    assert place.fences("a") == [fence]


def test_on_a_terminal_it_asks_and_breaks_after_a_yes(place: Place, holder: Worker, screen: Screens) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = screen("break", "a")
    terminal.read_until("[y/N] ")
    assert str(fence) in terminal.output
    assert place.fences("a") == [fence]

    terminal.type("y\n")

    assert terminal.finish() == 0
    assert f"a, fence {fence}: broken" in terminal.output
    assert place.fences("a") == []


@pytest.mark.parametrize("keys", ["\n", "n\n", "yesterday\n", "\x04"], ids=["return", "n", "nonsense", "end of file"])
def test_every_other_answer_breaks_nothing(place: Place, holder: Worker, screen: Screens, keys: str) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = screen("break", "a")
    terminal.read_until("[y/N] ")

    terminal.type(keys)

    assert terminal.finish() == 1
    assert "nothing was broken" in terminal.output
    assert place.fences("a") == [fence]


def test_ctrl_c_at_the_question_breaks_nothing(place: Place, holder: Worker, screen: Screens) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = screen("break", "a")
    terminal.read_until("[y/N] ")

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert "Traceback" not in terminal.output
    assert terminal.output.endswith("\n")
    assert place.fences("a") == [fence]


def test_a_successor_that_comes_while_the_question_stands_is_not_broken(
    place: Place, pool: WorkerPool, holder: Worker, screen: Screens
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = screen("break", "a")
    terminal.read_until("[y/N] ")
    holder.call("release", lock="a")
    successor = pool.start(place.url).call("hold", lock="a")["fence"]

    terminal.type("y\n")

    assert terminal.finish() == 1
    assert f"a, fence {fence}: it was already gone; nothing was broken" in terminal.output
    assert place.fences("a") == [successor]


def test_of_several_holders_one_may_be_gone_by_then(place: Place, pool: WorkerPool, screen: Screens) -> None:
    first, second = pool.start(place.url), pool.start(place.url)
    gone = first.call("hold", lock="pool", limit=2)["fence"]
    still = second.call("hold", lock="pool", limit=2)["fence"]
    terminal = screen("break", "pool")
    terminal.read_until("these 2 leases?")
    first.call("release", lock="pool")

    terminal.type("y\n")

    assert terminal.finish() == 1
    assert f"fence {gone}: it was already gone" in terminal.output
    assert f"fence {still}: broken" in terminal.output
    assert place.fences("pool") == []


def test_the_help_warns_that_the_holder_may_work_on(place: Place) -> None:
    assert "WARNING: the holder learns of it at its next renewal" in place.run("break", "--help").out
