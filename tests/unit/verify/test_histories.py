"""Hazard: a journal loses lines of a killed worker, or a merge hides an overlap or adds a false one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast_lab.checking import history as h
from holdfast_lab.verify.journal import Journal, read
from holdfast_lab.verify.merge import merge

LOCK = "nightly"


def line(kind: str, at: float, client: str, **facts: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "client": client, **facts}


def lease(client: str, ticket: int, at: float, *held: float, fence: int = 1) -> list[dict[str, Any]]:
    """A lease that was found held at these times."""
    lines = [line("started", at - 0.1, client, ticket=ticket, lock=LOCK, timeout=1.0)]
    lines.append(line("granted", at, client, ticket=ticket, lock=LOCK, fence=fence))
    return lines + [line("held", time, client, ticket=ticket, deadline=None) for time in held]


def merged(*lines: list[dict[str, Any]]) -> Any:
    return merge(sorted((each for group in lines for each in group), key=lambda each: float(each["at"])), [])


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_process_loses_no_line_that_it_wrote(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from holdfast_lab.verify.journal import Journal;"
        "journal = Journal(sys.argv[1], 'worker-0', 0);"
        "[journal.write('held', at=float(number), ticket=1, deadline=None) for number in range(1000)];"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )

    process = subprocess.run([sys.executable, "-c", code, str(tmp_path / "0.journal")], check=False, timeout=60)

    assert process.returncode == -signal.SIGKILL
    assert [entry["at"] for entry in read(tmp_path)] == [float(number) for number in range(1000)]


def test_a_half_written_line_is_skipped_and_journals_are_merged_by_time(tmp_path: Path) -> None:
    for number, times in enumerate([(3.0, 1.0), (2.0,)]):
        journal = Journal(str(tmp_path / f"{number}.journal"), f"worker-{number}", number)
        for at in times:
            journal.write("lost", at, lock=LOCK, fence=1)
        journal.close()
    with open(tmp_path / "1.journal", "ab") as file:
        file.write(b'{"kind": "los')

    assert [(entry["at"], entry["client"]) for entry in read(tmp_path)] == [
        (1.0, "worker-0"),
        (2.0, "worker-1"),
        (3.0, "worker-0"),
    ]


def test_tickets_of_different_workers_differ(tmp_path: Path) -> None:
    journals = [Journal(str(tmp_path / f"{number}"), "worker", number) for number in range(3)]

    tickets = {journal.new_ticket() for journal in journals for _ in range(5)}

    assert len(tickets) == 15
    for journal in journals:
        journal.close()


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_belief_lasts_until_the_last_check_that_found_it_held() -> None:
    histories = merged(lease("a", 1, 1.0, 1.1, 1.9), [line("not held", 5.0, "a", ticket=1)])

    granted, ended = histories.beliefs
    assert granted == h.Granted(1.0, "a", 1, LOCK, 1)
    assert ended == h.ReleaseStarted(1.9, "a", 1, LOCK)
    assert h.Lost(5.0, "a", 1, LOCK) in histories.complete


def test_a_lease_without_a_check_is_no_belief() -> None:
    assert merged(lease("a", 1, 1.0)).beliefs == []


def test_a_belief_that_ends_when_the_next_begins_ends_first() -> None:
    histories = merged(lease("a", 1, 1.0, 2.0), lease("b", 2, 2.0, 2.5, fence=2))

    assert [type(event) for event in histories.beliefs] == [h.Granted, h.ReleaseStarted] * 2


def test_a_reported_loss_belongs_to_the_lease_with_its_fence_also_if_it_came_before_the_grant() -> None:
    early = [line("lost", 0.99, "a", lock=LOCK, fence=7)]

    histories = merged(early, lease("a", 1, 1.0, fence=7))

    assert [type(event) for event in histories.complete] == [h.AcquireStarted, h.Granted, h.Lost, h.LossReported]


def test_a_loss_that_a_release_finds_is_reported_once() -> None:
    end = [
        line("release", 2.0, "a", ticket=1),
        line("lost", 2.1, "a", lock=LOCK, fence=1),
        line("released", 2.2, "a", ticket=1, outcome="lost"),
    ]

    kinds = [type(event) for event in merged(lease("a", 1, 1.0, 1.5), end).complete]

    assert kinds[-3:] == [h.ReleaseStarted, h.LossReported, h.ReleaseEnded]
    assert h.Lost not in kinds


def test_a_deadline_that_moves_is_a_renewal() -> None:
    lines = lease("a", 1, 1.0)
    lines += [
        line("held", at, "a", ticket=1, deadline=deadline) for at, deadline in ((1.1, 3.0), (1.2, 3.0), (1.9, 4.0))
    ]

    renewed = [event for event in merged(lines).complete if isinstance(event, h.Renewed)]

    assert [event.deadline for event in renewed] == [3.0, 4.0]


def test_children_that_believe_to_hold_a_lease_of_their_parent_are_found() -> None:
    forks = [line("forked", 1.0, "a/7", lock=LOCK, held=False), line("forked", 2.0, "a/8", lock=LOCK, held=True)]

    histories = merged(forks)

    assert histories.forks == 2
    assert [event.client for event in histories.held_by_children] == ["a/8"]


def test_a_problem_of_the_load_is_kept() -> None:
    assert merged([line("problem", 1.0, "a", text="Traceback")]).problems == ("Traceback",)
