"""The demo in sentences; the same ones for plain lines and for the live table. ASCII only."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.demo.record import Record, Turn
from holdfast.cli.demo.report import CLOCK_NAME

FENCE = (
    "fence: a number that grows with every lease, so that what the lock protects",
    "can refuse a holder that comes too late; in full at first, then +n from there",
)


def heading(workers: int, ttl: float) -> str:
    return f"holdfast demo: {workers} processes take turns on one lock (ttl {ttl:g} s)"


def got(record: Record, turn: Turn, in_line: Sequence[int]) -> str:
    queue = f"; in line: {', '.join(map(str, in_line))}" if in_line else ""
    return f"worker {turn.worker} got it, fence {fence(record, turn)}, waited {turn.waited:.3f} s{queue}"


def stays(worker: int) -> str:
    return f"worker {worker} should be done by now, but does not give it back"


def killed(worker: int, pid: int) -> str:
    return f"kill -9 {pid}: worker {worker} dies while it holds the lock"


def took_over(record: Record, turn: Turn, ttl: float) -> str:
    after = duration(record.takeover_time() or 0.0)
    return f"worker {turn.worker} took over {after} after the kill (ttl {ttl:g} s), fence {fence(record, turn)}"


def fence(record: Record, turn: Turn) -> str:
    """The first one in full; then how much it has grown."""
    grown = turn.fence - record.first_fence
    return str(turn.fence) if grown == 0 else f"{grown:+d}"


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.3f} s"  # noqa: PLR2004


def summary(record: Record, seconds: float, ttl: float) -> list[str]:
    """The end of the story: facts, then the verdict."""
    turns = record.in_order()
    problems = record.problems()
    lines = [
        f"{len(turns)} turns of {len(record.workers)} workers in {seconds:.1f} s",
        f"{len(record.overlaps())} overlaps: start and end of each turn compared, on {CLOCK_NAME}",
        f"longest wait {record.wait_max():.3f} s",
    ]
    if turns:
        lines.insert(2, f"fences from {turns[0].fence} to {turns[-1].fence}")
    hand_over = record.hand_over_median()
    if hand_over is not None:
        lines.append(f"hand-over {duration(hand_over)} (median), from giving it back to the next one's start")
    takeover = record.takeover_time()
    if takeover is not None:
        relation = "although" if takeover < ttl / 2 else "and"
        lines.append(f"takeover {duration(takeover)} after kill -9, {relation} the ttl is {ttl:g} s")
    lines += [f"FAILED: {problem}" for problem in problems]
    if not problems:
        lines.append("all checks passed: never two at a time, every fence greater than the one before")
    return lines
