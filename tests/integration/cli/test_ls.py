"""Hazard: `holdfast ls` omits a lock, prints an unreadable table, or shortens a name for a program."""

from __future__ import annotations

import time

from tests.integration.cli.conftest import CliStore, StartOnTerminal
from tests.support.processes import Worker, WorkerPool

LONG = "invoices:" + "x" * 400 + ":2031-04-17"


def test_a_lock_in_use_is_listed_with_its_holder_and_its_waiters(
    store: CliStore, pool: WorkerPool, holder: Worker
) -> None:
    fence = holder.call("hold", lock="nightly-report")["fence"]
    for _ in range(2):
        pool.start(store.url).call("wait", lock="nightly-report")
    store.await_waiters("nightly-report", 2)

    result = store.run("ls")

    heading, row = result.lines
    assert heading.split() == ["lock", "kind", "holder", "fence", "held", "left", "waiters"]
    name, kind, shown_holder, shown, *_, waiters = row.split()
    assert (name, kind, int(shown), int(waiters)) == ("nightly-report", "lock", fence, 2)
    assert shown_holder.endswith(f"/{holder.pid}")
    assert (result.status, result.errors) == (0, "")


def test_every_holder_of_a_semaphore_has_a_line(store: CliStore, pool: WorkerPool) -> None:
    fences = [pool.start(store.url).call("hold", lock="pool", limit=3)["fence"] for _ in range(2)]

    _, first, second = store.run("ls").lines

    assert first.startswith("pool")
    assert "semaphore 3" in first
    assert str(fences[0]) in first
    assert second.startswith("   ")
    assert str(fences[1]) in second


def test_a_lock_with_readers_is_listed_as_read_write(store: CliStore, holder: Worker) -> None:
    holder.call("hold", lock="catalogue", shared=True)

    assert "read-write" in store.run("ls").lines[1]
    assert store.run("ls", "--json").json[0]["kind"] == "read-write"


def test_a_prefix_is_taken_literally(store: CliStore, holder: Worker) -> None:
    holder.call("hold_many", locks=["a%", "a_b", "ab", "A%"])

    assert store.run("ls", "--names", "a%").out == "a%\n"
    assert store.run("ls", "--names", "a").out == "a%\na_b\nab\n"
    assert store.run("ls", "--names", "--", "-x").out == ""


def test_ls_exits_with_0_when_no_lock_is_in_use(store: CliStore, holder: Worker) -> None:
    holder.call("hold", lock="other")

    result = store.run("ls", "order:")

    assert result == (0, "", f"no lock whose name begins with order: is in use ({store.url})\n")
    assert store.run("ls", "order:", "--json").json == []


def test_json_has_every_field(store: CliStore, pool: WorkerPool, holder: Worker) -> None:
    holder.call("impersonate", host="web-3", program="report.py", thread="main")
    fence = holder.call("hold", lock=LONG, limit=2, meta={"day": "2031-04-17"})["fence"]
    waiter = pool.start(store.url)
    waiter.call("wait", lock=LONG)
    store.await_waiters(LONG, 1)

    (lock,) = store.run("ls", "--json").json

    assert (lock["lock"], lock["kind"], lock["limit"]) == (LONG, "semaphore", 2)
    (held,) = lock["holders"]
    assert 0 < held.pop("ttl_left") <= 30
    assert abs(held.pop("since") - time.time()) < 3600
    assert held.pop("caller")
    assert held == {
        "fence": fence,
        "host": "web-3",
        "pid": holder.pid,
        "agent": "main",
        "program": "report.py",
        "exclusive": False,
        "owner": None,
        "revocable": False,
        "meta": {"day": "2031-04-17"},
    }
    (waits,) = lock["waiters"]
    assert (waits["pid"], waits["fence"], waits["exclusive"]) == (waiter.pid, None, True)


def test_long_and_wide_names_are_shortened_in_the_middle_and_every_line_fits(store: CliStore, holder: Worker) -> None:
    holder.call("impersonate", host="a-machine-with-a-very-long-name.in-some.datacentre.example")
    holder.call("hold_many", locks=[LONG, "錠前" * 100, "short"])

    lines = store.run("ls").lines

    assert all(columns(line) <= 80 for line in lines)
    assert lines[1].startswith("invo")
    assert "-17 " in lines[1]
    assert len({columns(line) for line in lines}) == 1  # all lines end at the same column
    assert LONG in store.run("ls", "--names").out.splitlines()
    assert LONG in store.run("ls", COLUMNS="600").out


def test_columns_are_dropped_on_a_narrow_terminal(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal
) -> None:
    holder.call("hold", lock=LONG)

    terminal = start_on_terminal("ls", columns=40)

    assert terminal.finish() == 0
    heading, row = terminal.text.splitlines()
    assert heading.split()[:2] == ["lock", "holder"]
    assert "fence" in heading
    assert len(row) <= 40


def test_a_hundred_locks_are_listed_in_order(store: CliStore, holder: Worker) -> None:
    names = [f"job-{number:03}" for number in range(100)]
    holder.call("hold_many", locks=names[::-1])

    assert [line.split()[0] for line in store.run("ls").lines[1:]] == names


def columns(line: str) -> int:
    """Compute the width without the code under test: the wide characters here are all from one block."""
    return sum(2 if 0x4E00 <= ord(character) <= 0x9FFF else 1 for character in line)
