"""Hazard: a table that shows a broken promise as held, blames a documented limit, or hides what was not exercised."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast_lab.checking import history as h
from holdfast_lab.verify.adapter import AnyAdapter
from holdfast_lab.verify.faults import FAULTS, Command
from holdfast_lab.verify.judging import Result, judge
from holdfast_lab.verify.merge import merge
from holdfast_lab.verify.ours import Tasks, Threads
from holdfast_lab.verify.probes import Handovers
from holdfast_lab.verify.reports import as_data, as_html, as_text, command_for, redacted
from holdfast_lab.verify.runner import Evidence, Happened, Plan
from tests.support.broken_locks import Documented, Nothing

LOCK = "nightly"
STRONG = Guarantees(Exclusion.CONSENSUS, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.NETWORK)
OURS = (Threads, Tasks)
NO_HANDOVERS = Handovers()


def line(kind: str, at: float, client: str, **facts: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "client": client, **facts}


def lease(client: str, ticket: int, at: float, until: float, fence: int | None = None) -> list[dict[str, Any]]:
    """A lease that is granted and checked at the first time, and checked and released at the second."""
    return [
        line("started", at - 0.1, client, ticket=ticket, lock=LOCK, timeout=1.0),
        line("granted", at, client, ticket=ticket, lock=LOCK, fence=fence),
        line("held", at, client, ticket=ticket, deadline=None),
        line("held", until, client, ticket=ticket, deadline=None),
        line("release", until, client, ticket=ticket),
        line("released", until, client, ticket=ticket, outcome="released"),
    ]


def result(
    *leases: list[dict[str, Any]],
    others: tuple[h.Event, ...] = (),
    kinds: tuple[AnyAdapter, ...] = OURS,
    guarantees: Guarantees | None = STRONG,
    handovers: Handovers = NO_HANDOVERS,
) -> Result:
    lines = sorted((each for group in leases for each in group), key=lambda each: float(each["at"]))
    plan = Plan("redis://user:s3cret@cache/0", seed=7, adapters=("a:B",), commands=(Command("restart", "true"),))
    faults = (Happened("pause", "worker-0", 101.5, 101.9, 0.25), Happened("cut", "all", 150.0, 150.0, None))
    evidence = Evidence(
        plan, guarantees, kinds, merge(lines, others), faults, {"kill": "not enough time"}, handovers, 0, 100.0
    )
    return judge(evidence)


def row(judged: Result, promise: str) -> Any:
    return next(row for row in judged.rows if row.promise == promise)


APART = (lease("worker-0", 1, 101.0, 102.0, 1), lease("worker-1", 2, 102.1, 103.0, 2))
OVERLAP = (lease("worker-0", 1, 101.0, 102.5, 1), lease("worker-1", 2, 102.0, 103.0, 2))
HEALED = (h.Healed(101.0),)


def test_leases_one_after_the_other_are_held() -> None:
    judged = result(*APART, others=HEALED)

    assert judged.is_ok
    assert row(judged, "exclusion")[1:4] == ("consensus", "held", 0)
    assert row(judged, "fence").status == "held"
    assert row(judged, "progress").status == "held"


def test_two_leases_that_overlap_break_exclusion_and_name_the_last_fault() -> None:
    judged = result(*OVERLAP, others=HEALED)

    assert not judged.is_ok
    assert row(judged, "exclusion").status == "broken"
    (finding,) = judged.findings
    assert (finding.promise, finding.fault, finding.status) == ("exclusion", "pause", "broken")


def test_a_fence_that_goes_back_breaks_the_fence() -> None:
    judged = result(lease("a", 1, 101.0, 102.0, 5), lease("b", 2, 102.1, 103.0, 4), others=HEALED)

    assert row(judged, "fence").status == "broken"
    assert row(judged, "exclusion").status == "held"


def test_a_violation_of_a_documented_limit_is_documented() -> None:
    overlap = [lease("a", 1, 101.0, 102.5), lease("b", 2, 102.0, 103.0)]

    assert row(result(*overlap, kinds=(Nothing,), guarantees=None), "exclusion").status == "broken"
    judged = result(*overlap, kinds=(Documented,), guarantees=None, others=HEALED)
    assert row(judged, "exclusion").status == "documented"
    assert "excludes no other process" in row(judged, "exclusion").detail
    assert judged.is_ok


def test_a_limit_that_is_documented_for_another_fault_does_not_excuse() -> None:
    class ForKill(Nothing):
        documented = {"exclusion/kill": "not after a kill"}  # noqa: RUF012

    class ForPause(Nothing):
        documented = {"exclusion/pause": "not after a pause"}  # noqa: RUF012

    assert row(result(*OVERLAP, kinds=(ForKill,), guarantees=None), "exclusion").status == "broken"
    assert row(result(*OVERLAP, kinds=(ForPause,), guarantees=None), "exclusion").status == "documented"


def test_an_update_that_a_former_holder_overwrote_breaks_writes_without_fences() -> None:
    writes = (
        h.Read(101.0, "a", 1, LOCK, 0, 0, fenced=False),
        h.Wrote(101.2, "b", 2, LOCK, 0, 2, before=0, fenced=False),
        h.Wrote(101.6, "a", 1, LOCK, 0, 1, before=0, fenced=False),
    )

    judged = result(lease("a", 1, 101.0, 102.0), others=writes, kinds=(Nothing,), guarantees=None)

    assert row(judged, "writes").status == "broken"
    assert judged.findings[0].violation.message.startswith("a replaced 2")


def test_what_a_library_does_not_have_is_not_promised() -> None:
    judged = result(lease("a", 1, 101.0, 102.0), kinds=(Nothing,), guarantees=None)

    for promise in ("fence", "order", "wake", "losses", "events"):
        assert row(judged, promise).status == "not promised"
    assert row(judged, "fork").status == "not exercised"


def test_no_grant_after_the_last_fault_breaks_progress() -> None:
    failed = [
        line("started", 104.0, "a", ticket=9, lock=LOCK, timeout=1.0),
        line("failed", 104.1, "a", ticket=9, lock=LOCK, outcome="error", reason="QuorumError: 2 of 5"),
    ]

    judged = result(*APART, failed, others=(h.Healed(103.5),))

    assert row(judged, "progress").status == "broken"
    assert "QuorumError (1)" in row(judged, "progress").detail


def test_a_run_without_grants_is_not_exercised() -> None:
    judged = result()

    assert not judged.is_exercised
    assert row(judged, "exclusion").status == "not exercised"


@pytest.mark.parametrize(("position", "status"), [((1, 2), "held"), ((2, 1), "broken")])
def test_a_waiter_that_is_overtaken_breaks_the_order(position: tuple[int, int], status: str) -> None:
    queued = tuple(
        h.ServerQueued(100.99, f"worker-{number}", number + 1, LOCK, index) for number, index in enumerate(position)
    )

    judged = result(*APART, others=queued, handovers=Handovers(LOCK, is_ordered=True))

    assert row(judged, "order").status == status


def test_slow_hand_overs_break_the_promise_of_a_push() -> None:
    waited = [lease("a", 1, 101.0, 102.0, 1), lease("b", 2, 102.9, 103.0, 2)]
    waited[1][0]["at"] = 101.5  # it waited when the lock was released

    judged = result(*waited, handovers=Handovers(LOCK, is_ordered=True))

    assert row(judged, "wake").status == "broken"
    assert row(result(*APART, handovers=Handovers(LOCK, is_ordered=True)), "wake").status == "not exercised"


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_text_has_the_table_the_timeline_and_the_command_and_no_password() -> None:
    text = as_text(result(*OVERLAP), width=100)

    assert "BROKEN: exclusion" in text
    assert "▲ violation" in text
    assert "not exercised: kill: not enough time" in text
    assert "pause  1      0.25 s  0.25 s" in text
    assert "cut    1      -       not in time" in text
    assert "--seed 7" in text
    assert "s3cret" not in text


def test_the_page_has_a_picture_of_each_violation_and_no_password() -> None:
    page = as_html(result(*OVERLAP))

    (start,) = [index for index in range(len(page)) if page.startswith("<svg", index)]
    picture = page[start : page.index("</svg>") + len("</svg>")]
    assert ET.fromstring(picture).tag.endswith("svg")  # noqa: S314  (we wrote it)
    assert "exclusion broken at 2 s" in picture  # since the start of the run
    assert "s3cret" not in page


def test_the_data_have_every_row_and_violation() -> None:
    data = as_data(result(*OVERLAP))

    assert data["ok"] is False
    assert [each["promise"] for each in data["violations"]] == ["exclusion"]
    assert data["violations"][0]["at"] == 2.0
    assert data["faults"][0]["recovered"] == 0.25
    assert data["command"].startswith("holdfast verify 'redis://user:***@cache/0' --seed 7")


def test_the_command_repeats_all_options_that_are_not_the_default() -> None:
    plan = Plan(
        "sqlite:///a.db",
        seed=3,
        seconds=30,
        workers=8,
        ttl=5.0,
        only=("pause", "restart"),
        commands=(Command("restart", "a b"), Command("failover", "c", during=False)),
    )

    assert command_for(plan) == (
        "holdfast verify sqlite:///a.db --seed 3 --seconds 30 --workers 8 --ttl 5 --only pause --only restart"
        " --fault 'restart=a b' --between failover=c"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redlock://u:s3cret@a,v:s3cret@b", "redlock://u:***@a,v:***@b"),
        ("redis://host?password=s3cret&method=setnx", "redis://host?password=***&method=setnx"),
    ],
)
def test_passwords_are_removed_from_urls(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_every_fault_has_a_meaning() -> None:
    assert all(kind.meaning for kind in FAULTS.values())
