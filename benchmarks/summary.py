"""One picture of a run: every store in a row, holdfast beside the locks of other libraries for threads.

On the left acquire and release of a free lock, on the right the p99 of waits for a contended lock. Bare calls that are
no locks are not shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import figures, plots
from benchmarks.contender import Arena
from benchmarks.results import Outcome, Record

# The row of a store, and our lock there.
ROWS = {
    Arena.MACHINE: ("file (SQLite)", "holdfast sqlite"),
    Arena.REDIS: ("Redis", "holdfast redis"),
    Arena.REDLOCK: ("5 × Redis (Redlock)", "holdfast redlock"),
    Arena.POSTGRESQL: ("PostgreSQL", "holdfast postgresql"),
    Arena.MYSQL: ("MariaDB", "holdfast mysql"),
    Arena.ETCD: ("etcd", "holdfast etcd"),
    Arena.ZOOKEEPER: ("ZooKeeper", "holdfast zookeeper"),
    Arena.NATS: ("NATS", "holdfast nats"),
    Arena.MEMCACHED: ("memcached", "holdfast memcached"),
}
PANELS = (
    ("a free lock: µs for acquire and release", "uncontended", "pairs", "pair", 1e6),
    ("8 want it, each for 2 ms: ms that 1 in 100 waits or more", "contended", "8-hold-2ms", "wait_p99", 1e3),
)


def summary_plot(outcomes: Sequence[Outcome]) -> str | None:
    """Return the SVG, or None if no store has figures for the first panel."""
    panels = []
    for title, measure, setting, key, scale in PANELS:
        rows: dict[str, list[plots.Mark]] = {}
        for outcome in outcomes:
            group = outcome.group
            if group.measure.name == measure and group.setting.slug == setting and group.arena in ROWS:
                label, ours = ROWS[group.arena]
                marks = [_mark(record, key, scale, ours) for record in outcome.records if _is_shown(record, key, ours)]
                if any(mark.kind == "ours" for mark in marks):
                    rows[label] = marks
        panels.append(plots.Rows(title, rows))
    if not panels[0].rows:
        return None
    order = [label for label, _ in ROWS.values() if label in panels[0].rows]
    return plots.rows("Every store: holdfast and other libraries, less is better", panels, order)


def _is_shown(record: Record, key: str, ours: str) -> bool:
    contender = record.case.contender
    if not record.values(key) or contender.is_floor:
        return False
    return contender.name == ours if contender.ours else True


def _mark(record: Record, key: str, scale: float, ours: str) -> plots.Mark:
    name = record.case.contender.name
    kind = "bad" if record.is_broken else "ours" if name == ours else "peer"
    return plots.Mark(name, kind, scale * figures.median(record.values(key)))
