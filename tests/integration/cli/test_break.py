"""Hazard: `holdfast break` ends the wrong lease, for example a successor's, or ends a lease without confirmation."""

from __future__ import annotations

import re

import pytest

from tests.integration.cli.conftest import CliStore, StartOnTerminal
from tests.support.pages import blocks
from tests.support.processes import Worker, WorkerPool


def test_a_broken_lease_is_lost_for_its_holder(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = store.run("break", "a", "--yes")

    assert result.status == 0
    assert result.out == f"a, fence {fence}: broken\n"
    assert str(holder.pid) in result.errors  # the holder was shown before
    assert store.fences("a") == []
    assert holder.call("lost", lock="a") == {"lost": [fence]}


def test_break_ends_all_leases_that_were_shown_and_waiters_acquire_the_lock(store: CliStore, pool: WorkerPool) -> None:
    fences = [pool.start(store.url).call("hold", lock="pool", limit=2)["fence"] for _ in range(2)]
    pool.start(store.url).call("wait", lock="pool", limit=2)
    store.await_waiters("pool", 1)

    result = store.run("break", "pool", "--yes", "--json")

    assert (result.status, result.json) == (0, {"lock": "pool", "broken": fences, "gone": []})
    store.await_waiters("pool", 0)
    (successor,) = store.fences("pool")
    assert successor not in fences


def test_break_with_a_fence_ends_only_that_lease(store: CliStore, pool: WorkerPool) -> None:
    first, second, third = (pool.start(store.url).call("hold", lock="pool", limit=3)["fence"] for _ in range(3))

    result = store.run("break", "pool", "--fence", str(second), "--yes")

    assert (result.status, result.out) == (0, f"pool, fence {second}: broken\n")
    assert str(first) not in result.errors
    assert "2 more, which will not be broken" in result.errors
    assert store.fences("pool") == [first, third]


def test_break_ends_the_leases_of_one_owner_together(store: CliStore, pool: WorkerPool) -> None:
    first, second = (pool.start(store.url).call("hold", lock="a", owner="job")["fence"] for _ in range(2))

    result = store.run("break", "a", "--yes", "--json")

    assert first == second
    assert (result.status, result.json) == (0, {"lock": "a", "broken": [first], "gone": []})
    assert store.fences("a") == []


def test_break_ends_no_lease_for_an_unknown_fence(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = store.run("break", "a", "--fence", str(fence + 1), "--yes")

    assert (result.status, result.out) == (1, "")
    assert result.errors == f"a is not held with fence {fence + 1} (held fences: {fence}): no lease was broken\n"
    assert store.fences("a") == [fence]


def test_break_exits_with_1_when_the_lock_is_free(store: CliStore) -> None:
    assert store.run("break", "a", "--yes") == (1, "", "a has no holder\n")

    as_json = store.run("break", "a", "--yes", "--json")
    assert (as_json.status, as_json.json) == (1, {"lock": "a", "broken": [], "gone": []})


def test_break_ends_no_lease_without_a_terminal_and_without_yes(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a")["fence"]

    result = store.run("break", "a")

    assert (result.status, result.out) == (2, "")
    assert "use --yes" in result.errors.splitlines()[-1]
    assert store.fences("a") == [fence]


def test_break_asks_on_a_terminal_and_ends_the_lease_after_yes(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = start_on_terminal("break", "a")
    terminal.read_until("[y/N] ")
    assert str(fence) in terminal.output
    assert store.fences("a") == [fence]

    terminal.type("y\n")

    assert terminal.finish() == 0
    assert f"a, fence {fence}: broken" in terminal.output
    assert store.fences("a") == []


def test_the_dialogue_of_break_is_the_one_that_its_page_shows(
    holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    [page] = [
        block.code for block in blocks("cli-operators.md") if block.run_by == "tests/integration/cli/test_break.py"
    ]
    name = "nightly-report"
    fence = holder.call("hold", lock=name)["fence"]

    terminal = start_on_terminal("break", name)
    terminal.read_until("[y/N] ")
    terminal.type("y\n")
    assert terminal.finish() == 0

    def normalized(text: str, fence: str) -> list[str]:
        """The lines. Of a property of the holder only the name is kept, because its value differs."""
        lines = text.replace("\r", "").replace(fence, "N").splitlines()
        return [re.split(" {2,}", line)[0] for line in lines]

    [shown] = re.findall(r"fence (\d+): broken", page)
    assert normalized(terminal.text, str(fence)) == normalized(page, shown)[1:]


@pytest.mark.parametrize("keys", ["\n", "n\n", "yesterday\n", "\x04"], ids=["return", "n", "nonsense", "end of file"])
def test_break_ends_no_lease_after_any_other_answer(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal, keys: str
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = start_on_terminal("break", "a")
    terminal.read_until("[y/N] ")

    terminal.type(keys)

    assert terminal.finish() == 1
    assert "no lease was broken" in terminal.output
    assert store.fences("a") == [fence]


def test_break_ends_no_lease_after_ctrl_c(store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = start_on_terminal("break", "a")
    terminal.read_until("[y/N] ")

    terminal.type("\x03")

    assert terminal.finish() == 130
    assert "Traceback" not in terminal.output
    assert terminal.output.endswith("\n")
    assert store.fences("a") == [fence]


def test_break_does_not_end_a_lease_granted_after_the_question(
    store: CliStore, pool: WorkerPool, holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    terminal = start_on_terminal("break", "a")
    terminal.read_until("[y/N] ")
    holder.call("release", lock="a")
    successor = pool.start(store.url).call("hold", lock="a")["fence"]

    terminal.type("y\n")

    assert terminal.finish() == 1
    assert f"a, fence {fence}: had already ended" in terminal.output
    assert store.fences("a") == [successor]


def test_break_reports_a_lease_that_ended_after_the_question(
    store: CliStore, pool: WorkerPool, start_on_terminal: StartOnTerminal
) -> None:
    first, second = pool.start(store.url), pool.start(store.url)
    gone = first.call("hold", lock="pool", limit=2)["fence"]
    still = second.call("hold", lock="pool", limit=2)["fence"]
    terminal = start_on_terminal("break", "pool")
    terminal.read_until("these 2 leases?")
    first.call("release", lock="pool")

    terminal.type("y\n")

    assert terminal.finish() == 1
    assert f"fence {gone}: had already ended" in terminal.output
    assert f"fence {still}: broken" in terminal.output
    assert store.fences("pool") == []


def test_the_help_of_break_warns_that_the_holder_may_keep_working(store: CliStore) -> None:
    assert "WARNING: the holder notices the loss at its next renewal" in store.run("break", "--help").out
