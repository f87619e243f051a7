"""Hazard: `holdfast show` prints the wrong holder, a wrong order of the queue, or a held lock as free."""

from __future__ import annotations

import re

from tests.integration.cli.conftest import CliStore
from tests.support.processes import Worker, WorkerPool


def test_show_prints_every_property_of_a_holder(store: CliStore, holder: Worker) -> None:
    holder.call("impersonate", host="web-3", program="report.py", thread="main loop")
    fence = holder.call("hold", lock="nightly report", meta={"day": "2031-04-17", "größe": [1, 2]})["fence"]

    result = store.run("show", "nightly report")

    assert (result.status, result.errors) == (0, "")
    assert result.lines[0] == "nightly report (lock)"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(.+ ago\)", fact("since", result.out))
    assert re.fullmatch(r"\d+ s|\d\.\d s", fact("ttl left", result.out))
    assert fact("holder", result.out) == f"web-3/{holder.pid}"
    assert fact("program", result.out) == "report.py"
    assert fact("thread or task", result.out) == "main loop"
    assert fact("fence", result.out) == str(fence)
    assert fact("meta", result.out) == '{"day": "2031-04-17", "größe": [1, 2]}'


def test_show_lists_waiters_in_queue_order(store: CliStore, pool: WorkerPool, holder: Worker) -> None:
    holder.call("hold", lock="a")
    waiters = [pool.start(store.url) for _ in range(3)]
    for number, waiter in enumerate(waiters, start=1):
        waiter.call("wait", lock="a")
        store.await_waiters("a", number)

    shown = store.run("show", "a")
    as_json = store.run("show", "a", "--json").json

    shown_waiters = re.findall(r"^(\d)  \S+/(\d+)", shown.out, re.MULTILINE)
    assert shown_waiters == [(str(number), str(waiter.pid)) for number, waiter in enumerate(waiters, start=1)]
    assert [waiter["pid"] for waiter in as_json["waiters"]] == [waiter.pid for waiter in waiters]


def test_show_distinguishes_readers_from_a_waiting_writer(store: CliStore, pool: WorkerPool) -> None:
    readers = [pool.start(store.url) for _ in range(2)]
    for reader in readers:
        reader.call("hold", lock="catalogue", shared=True)
    writer = pool.start(store.url)
    writer.call("wait", lock="catalogue")
    store.await_waiters("catalogue", 1)

    shown = store.run("show", "catalogue").out

    assert [int(pid) for pid in re.findall(r"^reader +\S+/(\d+)", shown, re.MULTILINE)] == [
        reader.pid for reader in readers
    ]
    assert re.search(rf"^1  \S+/{writer.pid} .* writer$", shown, re.MULTILINE)


def test_show_reports_a_free_lock_with_status_1(store: CliStore) -> None:
    assert store.run("show", "a b") == (1, "a b is free\n", "")

    as_json = store.run("show", "a b", "--json")
    assert (as_json.status, as_json.json["lock"], as_json.json["holders"], as_json.json["waiters"]) == (
        1,
        "a b",
        [],
        [],
    )


def fact(name: str, text: str) -> str:
    match = re.search(rf"^{name} +(.*)$", text, re.MULTILINE)
    assert match is not None, f"no {name} in:\n{text}"
    return match[1]
