"""A long search that was killed repeats or omits worlds, two of them write one ledger, or the ledger is wrong."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast import ConfigurationError, LockLost
from holdfast_lab.long_search import ledger as ledger_
from holdfast_lab.long_search.__main__ import main
from holdfast_lab.long_search.ledger import Key, Record, Searched, Violation, contents_of, open_ledger, read
from holdfast_lab.long_search.publish import publish
from holdfast_lab.long_search.tasks import Task, command_of, seed_tasks, seeds_of
from holdfast_lab.long_search.version import code_version
from holdfast_lab.sim.search import CHUNK
from holdfast_lab.sim.workers import Call, call_in_workers
from tests.sim.broken import FROM_THE_REPLY
from tests.support.commands import Result, simulate
from tests.support.processes import eventually
from tests.support.terminals import OnTerminal

SEARCH = [sys.executable, "-m", "holdfast_lab.long_search"]
KEY = Key("1234", "memory", "locks", ledger_.SEEDS)
# Worlds 93 and 110 fail at present.
FAILING = ["--mutant", FROM_THE_REPLY.name, "--workloads", "locks", "--no-small", "--first", "90"]
MEMORY = ["--backends", "memory", "--workloads", "locks", "--no-small"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def arguments(ledger: Path, *more: str) -> list[str]:
    return [*SEARCH, "--ledger", str(ledger), *more]


def search(ledger: Path, *more: str) -> Result:
    """Run the command in this process: a new process imports the simulator, which takes longer than a small search."""
    shards = [] if "--shards" in more else ["--shards", "1"]
    on_term = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(["--ledger", str(ledger), *more, *shards])
        finally:
            signal.signal(signal.SIGTERM, on_term)
    return Result(status, out.getvalue(), errors.getvalue())


def seeds(records: Sequence[Record]) -> list[int]:
    """All seeds of these records, with repetitions."""
    return sorted(seed for record in records for seed in range(record.first, record.stop))


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_search_that_is_killed_continues_without_loss_or_repetition(ledger: Path) -> None:
    process = subprocess.Popen(arguments(ledger, *MEMORY, "--seeds", "1000000", "--shards", "2"))
    eventually(lambda: len(read(ledger)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = read(ledger)

    wanted = max(record.stop for record in before) + 2 * CHUNK
    again = search(ledger, *MEMORY, "--seeds", str(wanted))

    assert again.status == 0
    assert f"{len(seeds(before)):,} of {wanted:,} worlds are in the ledger" in again.out
    assert read(ledger)[: len(before)] == before
    assert seeds(read(ledger)) == list(range(wanted))


def test_shards_search_each_seed_of_each_backend_and_workload_once(ledger: Path) -> None:
    backends, workloads = ("memory", "redlock"), ("locks", "transfer")
    wanted = ["--backends", *backends, "--workloads", *workloads, "--no-small", "--seeds", "30", "--shards", "2"]

    done = search(ledger, *wanted)

    records = read(ledger)
    assert done.status == 0
    assert "redlock does not support transfer" in done.out
    assert {(record.key.backend, record.key.workload) for record in records} == {
        *(("memory", workload) for workload in workloads),
        ("redlock", "locks"),
    }
    for key, searched in contents_of(records).items():
        assert searched.ranges == [seeds_of(key.backend, 30)]
        assert seeds([record for record in records if record.key == key]) == list(seeds_of(key.backend, 30))


def test_a_second_search_on_a_ledger_in_use_is_refused(ledger: Path) -> None:
    with open_ledger(ledger):
        refused = search(ledger, *MEMORY)

    assert refused.status == 124
    assert "another search writes the ledger" in refused.errors
    assert read(ledger) == []


def test_violations_are_shown_with_the_command_that_repeats_them_and_end_the_search(ledger: Path) -> None:
    wanted = [*FAILING, "--seeds", "2000"]

    done = search(ledger, *wanted)

    assert done.status == 1
    match = re.search(r"^VIOLATION memory, locks, seed (\d+): (.*)\n  again: holdfast (.*)$", done.out, re.MULTILINE)
    assert match
    last = read(ledger)[-1]
    assert last.violations[0] == Violation(match[2], int(match[1]))
    assert len(seeds(read(ledger))) < 2000
    command, *words = match[3].split()
    assert command == "simulate"
    assert simulate(*words, "--no-shrink").status == 1


def test_a_search_that_keeps_going_searches_all_worlds_and_reports_the_violations_of_earlier_runs(ledger: Path) -> None:
    wanted = [*FAILING, "--seeds", "30", "--keep-going"]

    first, second = search(ledger, *wanted), search(ledger, *wanted)

    assert (first.status, second.status) == (1, 1)
    assert seeds(read(ledger)) == list(range(90, 120))
    assert second.out.count("VIOLATION in the ledger: ") == first.out.count("VIOLATION ") > 0


def test_cancellations_are_searched_once(ledger: Path) -> None:
    wanted = ["--backends", "postgresql-advisory", "--workloads", "locks", "--seeds", "1"]

    first, second = search(ledger, *wanted), search(ledger, *wanted)

    assert (first.status, second.status) == (0, 0)
    assert sorted(record.key.kind for record in read(ledger)) == [ledger_.CANCELS, ledger_.SEEDS]
    assert "1 of 1 worlds, 1 of 1 other searches, 0 violations" in second.out


def test_an_exhaustive_search_records_its_violation() -> None:
    key = KEY._replace(backend="redlock", kind=ledger_.EXHAUSTIVE, mutant="write-back-without-owner")
    call = Task(key).call

    record = call.function(*call.arguments)

    (violation,) = record.violations
    assert violation.seed is None
    assert command_of(key, None).endswith("--mutant write-back-without-owner --workload locks --exhaustive")


def test_ctrl_c_ends_the_search_and_the_ledger_can_be_continued(ledger: Path) -> None:
    terminal = OnTerminal(arguments(ledger, *MEMORY, "--seeds", "1000000"), {**os.environ, "TERM": "xterm"})
    try:
        terminal.read_until(" left")
        terminal.type("\x03")

        assert terminal.finish() == 130
        assert "run the command again to continue" in terminal.output
        assert "Traceback" not in terminal.output
    finally:
        terminal.close()
    with open_ledger(ledger) as reopened:
        assert sum(searched.worlds for searched in reopened.contents.values()) == len(seeds(read(ledger)))


def test_a_file_that_is_not_a_ledger_is_refused_and_not_changed(ledger: Path) -> None:
    ledger.write_text("a shopping list\n")

    refused = search(ledger, *MEMORY)

    assert refused.status == 2
    assert "invalid line 1" in refused.errors
    assert ledger.read_text() == "a shopping list\n"


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_incomplete_last_line_is_not_read_and_is_removed(ledger: Path) -> None:
    first, second = Record(KEY, 0, 25, 1.0, (Violation("x", 3),)), Record(KEY, 25, 25, 2.0)
    ledger.write_text(first.to_line() + second.to_line()[:40])

    with open_ledger(ledger) as opened:
        opened.append(second)

    assert read(ledger) == [first, second]


def test_a_process_that_has_lost_the_lock_does_not_write(ledger: Path) -> None:
    with pytest.raises(LockLost), open_ledger(ledger) as opened:
        ledger.with_name(f"{ledger.name}.lock").unlink()  # the store of the lock is lost, and so is the lock
        opened.append(Record(KEY, 0, 25, 1.0))

    assert read(ledger) == []


def test_worlds_that_were_searched_twice_count_once() -> None:
    searched = Searched()
    for first, worlds in ((0, 10), (20, 10), (5, 10), (0, 10), (29, 1)):
        searched.add(Record(KEY, first, worlds, seconds=float(worlds)))

    assert searched.ranges == [range(15), range(20, 30)]
    assert (searched.worlds, searched.seconds) == (25, 25.0)
    assert list(searched.missing(range(3, 40))) == [range(15, 20), range(30, 40)]


def test_all_backends_advance_together() -> None:
    keys = [KEY, KEY._replace(backend="redlock")]

    tasks = list(seed_tasks(keys, 100 * CHUNK, lambda _: Searched()))

    half = tasks[: len(tasks) // 2]
    assert sum(task.key.backend == "redlock" for task in half) == pytest.approx(15, abs=1)
    assert sum(task.key.backend == "memory" for task in half) == pytest.approx(50, abs=1)


def test_a_search_begins_with_the_first_seed_of_its_request(ledger: Path) -> None:
    search(ledger, *MEMORY, "--seeds", "10")

    done = search(ledger, *MEMORY, "--first", "100", "--seeds", "30")

    assert "0 of 30 worlds are in the ledger" in done.out
    assert seeds(read(ledger)) == [*range(10), *range(100, 130)]


def test_a_call_is_taken_only_when_a_worker_is_free_for_it() -> None:
    taken = 0

    def calls() -> Iterator[Call]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield Call(abs, (-number,))

    results = {}
    for number, result in call_in_workers(calls(), 2):
        results[number] = result
        assert taken <= len(results) + 2

    assert results == {number: number for number in range(20)}


def test_the_version_of_the_code_names_a_commit_and_changes_with_the_sources() -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    version = code_version()

    assert version == code_version()
    assert re.fullmatch(r"[0-9a-f]{10,}(\+[0-9a-f]{10})?" if commit else r"\d+\.\d+\.\d+", version)


# ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_published_twice_is_added_once_and_earlier_records_stay(ledger: Path, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    document = folder / "track-record.md"
    document.write_text("before\n<!-- ledger -->\n<!-- /ledger -->\nafter\n")
    exhaustive = KEY._replace(kind=ledger_.EXHAUSTIVE)
    earlier = Record(KEY._replace(code="0000"), 0, 1000, 3600.0)
    (folder / "search-ledger.jsonl").write_text(earlier.to_line())
    with open_ledger(ledger) as opened:
        for first in (25, 0, 75):
            opened.append(Record(KEY, first, 25, 900.0, (Violation("mutual exclusion", first),) if first == 75 else ()))
        opened.append(Record(exhaustive, 0, 3500, 1800.0))
        opened.append(Record(KEY._replace(mutant="x"), 0, 25, 900.0))

    publish(ledger, folder)
    once = document.read_text()
    publish(ledger, folder)

    assert document.read_text() == once
    assert (
        "| `0000` | 1,000 | 0 | 0 | 1.0 |\n| `1234` | 75 | 3,500 | 1 | 1.2 |\n| all | 1,075 | 3,500 | 1 | 2.2 |" in once
    )
    assert "| memory | 1,075 |\n" in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert read(folder / "search-ledger.jsonl") == [
        earlier,
        Record(KEY, 0, 50, 1800.0),
        Record(KEY, 75, 25, 900.0, (Violation("mutual exclusion", 75),)),
        Record(exhaustive, 0, 3500, 1800.0),
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [("no marks\n", "must have the lines"), ("<!-- ledger -->\n<!-- /ledger -->\n", "no records")],
)
def test_an_empty_ledger_and_a_document_without_a_place_for_the_tables_are_refused(
    ledger: Path, tmp_path: Path, document: str, problem: str
) -> None:
    (tmp_path / "track-record.md").write_text(document)
    ledger.write_text("")

    with pytest.raises(ConfigurationError, match=problem):
        publish(ledger, tmp_path)
