"""A verdict is wrong, or a report does not show the violation."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast_lab.checking import CHECKERS, Judge, Promises, judge, report, svg, timeline
from holdfast_lab.checking import history as h
from holdfast_lab.checking.layout import lay_out, ticks
from tests.unit.checking.histories import ONE_OF_EACH

LOCK = "nightly"
HISTORY: h.History = [
    h.AcquireStarted(0.0, "web-1", 1, LOCK, timeout=10),
    h.Granted(0.2, "web-1", 1, LOCK, 1, deadline=6.0),
    h.AcquireStarted(0.6, "web-2", 2, LOCK),
    h.AcquireStarted(0.8, "web-3", 3, LOCK, timeout=2),
    h.Paused(2.0, "web-1"),
    h.FaultStarted(2.4, "partition", "web-3"),
    h.AcquireFailed(2.8, "web-3", 3, LOCK, "timed out"),
    h.FaultEnded(4.0, "partition", "web-3"),
    h.StateLost(4.2, "clock"),
    h.Granted(4.8, "web-2", 2, LOCK, 2, deadline=9.0),
    h.Crashed(5.6, "web-3"),
    h.Resumed(7.0, "web-1"),
    h.Lost(7.2, "web-1", 1, LOCK, "no renewal"),
    h.LossReported(7.2, "web-1", 1, LOCK),
    h.ReleaseStarted(8.0, "web-2", 2, LOCK),
    h.End(8.0),
]
KEPT: h.History = [event for event in HISTORY if not (isinstance(event, h.Granted) and event.client == "web-2")]
OVERLAP = judge(HISTORY).gravest


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_history_that_keeps_its_promises_is_ok() -> None:
    verdict = judge(KEPT)

    assert verdict.ok
    assert not verdict.violations
    assert set(verdict.broken.values()) == {0}


def test_a_promise_that_was_not_tested_is_not_reported_as_kept() -> None:
    assert "steady progress" not in judge(KEPT).broken
    assert "steady progress" in judge([h.Healed(0), *KEPT]).broken
    assert "bounded waiting" in judge(KEPT, Promises(overtaken_max=5)).broken


def test_a_history_with_an_overlap_is_not_ok() -> None:
    verdict = judge(HISTORY)

    assert not verdict.ok
    assert verdict.broken["mutual exclusion"] == 1
    assert verdict.violations[0].message == "web-2 was granted 'nightly' while web-1 believed to hold it"


def test_the_statistics_count() -> None:
    statistics = judge(HISTORY).statistics

    assert (statistics.events, statistics.seconds, statistics.calls, statistics.grants) == (16, 8.0, 3, 2)
    assert statistics.longest_wait == pytest.approx(4.2)
    assert (statistics.timeouts, statistics.losses, statistics.pauses, statistics.crashes) == (1, 1, 1, 1)
    assert (statistics.faults, statistics.state_losses, statistics.failures) == (1, 1, 0)


def test_an_empty_history_is_ok() -> None:
    assert judge([]).ok
    assert timeline([])
    assert svg([])


def test_a_history_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the order of time"):
        judge([h.End(1), h.End(0)])


def test_a_caller_that_feeds_events_can_stop_at_the_first_violation() -> None:
    judging = Judge()

    for event in HISTORY:
        judging.feed(event)
        if judging.broken:
            break

    assert event is HISTORY[9]


def test_every_checker_has_a_name_of_two_words_and_a_promise_of_one_line() -> None:
    for kind in CHECKERS:
        assert len(kind.name.split()) == 2
        assert kind(Promises()).promise.endswith(".")
    assert len({kind.name for kind in CHECKERS}) == len(CHECKERS)


def test_promises_follow_from_guarantees() -> None:
    guarantees = Guarantees(Exclusion.CACHE, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)

    promises = Promises.of(guarantees, ttl=10, sees_server=False, leftover_max=99.0)

    assert (promises.exclusion, promises.fence, promises.order) == guarantees[:3]
    assert (promises.idle_max, promises.leftover_max, promises.sees_server) == (20.0, 99.0, False)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_of_a_violation_has_the_promise_the_time_and_the_events() -> None:
    text = report(HISTORY, judge(HISTORY))
    lines = text.splitlines()

    assert lines[0].startswith("BROKEN  mutual exclusion: At no time do more clients believe")
    assert "        At 4.8 s web-2 was granted 'nightly' while web-1 believed to hold it." in lines
    assert "  ->    4.800000  web-2        granted 'nightly', fence 2, until 9 s" in lines
    assert "  ->    0.200000  web-1        granted 'nightly', fence 1, until 6 s" in lines
    assert "        2.000000  web-1        paused" in lines
    assert timeline(HISTORY, OVERLAP) in text
    assert "Violations: mutual exclusion 1." in text
    assert max(map(len, lines)) <= 100


def test_the_report_of_a_kept_promise_is_short() -> None:
    assert report(KEPT, judge(KEPT)) == (
        "All promises kept: mutual exclusion, growing fences, single grants, losses reported, exact outcomes,\n"
        "fair order, nothing left.\n"
        "15 events in 8 s; calls: 3, grants: 1, timeouts: 1, losses: 1, pauses: 1, crashes: 1, faults: 1,\n"
        "state losses of the server: 1, longest wait: 0.2 s.\n"
    )


def test_the_report_omits_events_far_from_the_violation() -> None:
    long: h.History = [h.Granted(0, "a", 1, LOCK, 1)]
    long += [h.Checked(number, "a", 1, LOCK, held=True) for number in range(1, 50)]
    long += [h.Granted(50, "b", 2, LOCK, 2), h.End(60)]

    lines = report(long, judge(long)).splitlines()

    assert "          …" in lines
    assert len(lines) < 40


# ── the timeline ─────────────────────────────────────────────────────────────────────────────────────────────────

GOLDEN = """\
  seconds │ │0               │2               │4               │6
partition │                     ~web-3~~~~~~~~
   server │                                    F
    web-1 │ ·█1██████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░!
    web-2 │      ···································█2██████████████████████████
    web-3 │       ·················?                       ×
violation │                                         ▲ 4.8 s
            · waits   █ holds (fence)   ▓ holds, paused
            ░ believes past its deadline   ? gave up   ! lost   × crashed
            ~ fault   F server lost state   ▲ violation
"""


def test_the_timeline_is_drawn_as_expected() -> None:
    assert timeline(HISTORY, OVERLAP, width=80) == GOLDEN


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_timeline_has_at_most_the_given_width(width: int) -> None:
    assert max(map(len, timeline(HISTORY, OVERLAP, width=width).splitlines())) <= width


def test_concurrent_calls_have_separate_lanes() -> None:
    concurrent: h.History = [h.Granted(0, "a", 1, "x", 1), h.Granted(1, "a", 2, "y", 1), h.End(2)]

    [row] = lay_out(concurrent).clients

    assert len(row.lanes) == 2


def test_a_long_history_is_shown_around_the_violation() -> None:
    conflicting = [*calm(1, 2000), h.Granted(30000, "c1", 2001, LOCK, 2001), h.Granted(30001, "c2", 2002, LOCK, 2002)]
    conflicting += calm(4001, 6000)

    picture = lay_out(conflicting, judge(conflicting).gravest)

    assert 29000 < picture.end < 70000
    assert picture.start > 19000
    assert len(picture.clients) <= 16
    assert {"c1", "c2"} <= {row.label for row in picture.clients}


def calm(first: int, last: int) -> h.History:
    """Forty clients take turns."""
    history: h.History = []
    for number in range(first, last + 1):
        at, client = number * 10.0, f"c{number % 40}"
        history += [h.Granted(at, client, number, LOCK, number), h.ReleaseStarted(at + 9, client, number, LOCK)]
    return history


def test_only_the_lock_of_the_violation_is_shown() -> None:
    other = h.Granted(1.0, "web-9", 9, "other", 1)
    history: h.History = sorted([*HISTORY, other], key=lambda event: event.at)

    assert "web-9" not in timeline(history, judge(history).gravest)
    assert "web-9" in timeline(history)


@pytest.mark.parametrize(("start", "end"), [(0, 8), (0, 0.001), (99.99, 100.01), (0, 1e6), (-0.5, 0.5)])
def test_ticks_are_few_round_and_inside(start: float, end: float) -> None:
    times = ticks(start, end, 8)

    assert 3 <= len(times) <= 11
    assert all(start <= at <= end and float(label) == pytest.approx(at) for at, label in times)


def test_every_event_can_be_drawn() -> None:
    everything: h.History = [
        *ONE_OF_EACH[:-1],
        h.Granted(11, "c", 8, "x", 10),
        h.Granted(11, "c", 8, "x", 11),
        h.AcquireStarted(11, "d", 9, "x"),
        h.AcquireStarted(11, "e", 10, "x"),
        h.Crashed(12, "d"),
        h.Restarted(13, "d"),
        h.Leftover(14, "x", "unknown", granted=False),
        h.End(14),
    ]
    violations = judge(everything, Promises(leftover_max=1.0)).violations

    assert {"nothing left", "single grants"} <= {violation.checker for violation in violations}
    for violation in (*violations, None):
        assert len(ET.fromstring(svg(everything, violation).encode()))  # noqa: S314
        assert max(map(len, timeline(everything, violation, width=80).splitlines())) <= 80


def test_a_leftover_is_drawn_in_the_row_of_the_server() -> None:
    history: h.History = [
        h.AcquireStarted(0, "a", 1, LOCK),
        h.Crashed(1, "a"),
        h.Leftover(100, LOCK, "a", granted=True),
        h.End(100),
    ]

    text = report(history, judge(history))

    assert "R left on the server" in text
    assert "  ->  100.000000  server       still has a as holder of 'nightly'" in text


def test_more_clients_than_rows_are_counted() -> None:
    history: h.History = [h.AcquireStarted(number, f"c{number}", number, LOCK) for number in range(20)]

    assert "… and 4 more clients" in timeline(history)
    assert "… and 4 more clients" in svg(history)


# ── the SVG ──────────────────────────────────────────────────────────────────────────────────────────────────────

SVG = "{http://www.w3.org/2000/svg}"


def test_the_svg_is_well_formed_and_marks_the_violation() -> None:
    root = ET.fromstring(svg(HISTORY, OVERLAP))  # noqa: S314  (our own)

    classes = [element.get("class") or "" for element in root.iter()]
    assert root.tag == f"{SVG}svg"
    assert classes.count("violation") == 1
    assert "holding involved" in classes
    assert {"waiting", "expired involved", "paused", "fault", "down"} <= set(classes)


def test_the_svg_has_details_in_tooltips() -> None:
    titles = [title.text or "" for title in ET.fromstring(svg(HISTORY, OVERLAP)).iter(f"{SVG}title")]  # noqa: S314

    assert any("granted 'nightly', fence 2" in title for title in titles)
    assert any("paused from 2 s to 7 s" in title for title in titles)
    assert "web-3, from 2.4 s to 4 s" in " ".join(titles)


def test_any_name_fits_into_the_svg() -> None:
    wild = "<&\"'\x00\x1b[31m]]>\ud800ü"
    history: h.History = [h.Granted(0, wild, 1, wild, 1), h.Granted(1, "b", 2, wild, 2), h.FaultStarted(1, wild, wild)]

    document = svg(history, judge(history).gravest)

    assert len(ET.fromstring(document.encode()))  # noqa: S314


def test_rows_of_the_svg_and_of_the_text_are_the_same() -> None:
    root = ET.fromstring(svg(HISTORY, OVERLAP))  # noqa: S314
    labels = [text.text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "end"]

    rows = [label for label in labels if label and "broken" not in label]

    assert rows == ["partition", "server", "web-1", "web-2", "web-3"]
