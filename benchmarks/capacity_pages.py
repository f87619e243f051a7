"""The tables of docs/capacity.md and docs/scaling.md, from docs/benchmarks/capacity.json, which `make capacity` fills.

As a program (`python -m benchmarks.capacity_pages`) this writes the tables again, from the same figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
DATA = DOCS / "benchmarks" / "capacity.json"
NAMES = {
    "redis": "Redis",
    "memcached": "memcached",
    "nats": "NATS",
    "postgresql": "PostgreSQL",
    "mysql": "MariaDB",
    "etcd": "etcd",
    "zookeeper": "ZooKeeper",
}
MARKED = re.compile(r"(<!-- (capacity|fleet): .*? -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
FLEET = 10_000  # clients of the model
FLEET_PAIRS = 1_000  # that they acquire and release each second
NONE = "–"  # not measured

Data = dict[str, dict[str, Any]]
Figures = Mapping[str, float]


def add(data: Data, store: str, measure: str, *, version: str, figures: Figures, run: Mapping[str, str]) -> None:
    """Replace the figures of one measure of one store in the data."""
    entry = data.setdefault(store, {"measures": {}})
    entry["version"], entry["run"] = version, dict(run)
    entry["measures"][measure] = dict(figures)


def load() -> Data:
    return dict(json.loads(DATA.read_text())) if DATA.exists() else {}


def write(data: Data) -> None:
    """Write the data, and the tables of both pages."""
    blocks = {"capacity": capacity_block(data), "fleet": fleet_block(data)}
    pages = {page: with_blocks(page.read_text(), blocks) for page in (DOCS / "capacity.md", DOCS / "scaling.md")}
    for path, text in {DATA: json.dumps(data, indent=1) + "\n", **pages}.items():
        path.write_text(text)


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """Return the page with these texts between their markers."""
    return MARKED.sub(lambda match: f"{match[1]}{blocks[match[2]]}{match[4]}", page)


def capacity_block(data: Data) -> str:
    """The costs on one core, the queue and the leases that a server carries, and the machine."""
    costs = _table(
        ("store", "pair", "pairs /s", "hand-over", "hand-overs /s", "renewal", "bytes of a lease"),
        data,
        lambda of: (
            _time(of.get("pair_cpu")),
            _rate(of.get("pair_cpu")),
            _time(of.get("hand_over_cpu")),
            _rate(of.get("hand_over_cpu")),
            _time(of.get("renewal_cpu")),
            _number(of.get("lease_bytes")),
        ),
    )
    crowds = _table(
        (
            "store",
            "waiters on one name",
            "server, of a core",
            "a waiter, each second",
            "a hand-over among them",
            "clients, of a core",
        ),
        data,
        lambda of: (
            _carried(of, "waiters"),
            _share(of.get("waiters_share")),
            _time(of["waiters_share"] / of["waiters"]) if of.get("waiters_share") and of.get("waiters") else NONE,
            _time(of.get("crowd_cpu")),
            _share(of.get("waiters_client_share")),
        ),
    )
    held = _table(
        (
            "store",
            "held leases, ttl 60 s",
            "server, of a core",
            "clients, of a core",
            "lost",
            "memory of a client for each",
        ),
        data,
        lambda of: (
            _carried(of, "leases"),
            _share(of.get("leases_share")),
            _share(of.get("leases_client_share")),
            _number(of.get("leases_lost")),
            f"{_number(of.get('lease_memory'))} bytes" if of.get("lease_memory") else NONE,
        ),
    )
    return f"\n{costs}\n{crowds}\n{held}\n{_runs(data)}\n"


def fleet_block(data: Data) -> str:
    """The model of a fleet, and what was measured with one."""
    model = _table(
        ("store", f"{FLEET_PAIRS:,} pairs per second, of a core", "connections"),
        data,
        lambda of: (_share(FLEET_PAIRS * of["pair_cpu"]) if of.get("pair_cpu") else NONE, f"{FLEET:,}"),
    )
    real = {name: entry for name, entry in data.items() if _figures(entry).get("fleet")}
    measured = _table(
        ("store", "clients", "connections", "pairs /s", "server, of a core", "a pair", "time of a pair: median", "p99"),
        real,
        lambda of: (
            _carried(of, "fleet"),
            _number(of.get("fleet_connections")),
            _number(of.get("fleet_rate")),
            _share(of.get("fleet_share")),
            _time(of["fleet_share"] / of["fleet_rate"] if of.get("fleet_rate") else None),
            _time(of.get("fleet_p50")),
            _time(of.get("fleet_p99")),
        ),
    )
    return f"\n{model}\nMeasured with real clients, each with its own connection:\n\n{measured}\n{_runs(real)}\n"


def _table(headings: tuple[str, ...], data: Data, cells: Callable[[Figures], tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, label in NAMES.items():
        if name in data:
            row = (data[name].get("version") or label, *cells(_figures(data[name])))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _runs(data: Data) -> str:
    """The machine, once for all stores of a run."""
    runs: dict[str, list[str]] = {}
    for name, label in NAMES.items():
        if name in data:
            facts = "; ".join(f"{fact}: {value}" for fact, value in data[name]["run"].items())
            runs.setdefault(facts, []).append(label)
    return "".join(f"- {', '.join(names)}: {facts}\n" for facts, names in runs.items())


def _figures(entry: Mapping[str, Any]) -> Figures:
    return {key: value for figures in entry["measures"].values() for key, value in figures.items()}


def _carried(of: Figures, key: str) -> str:
    """The number that was reached, and the requested number if it is greater."""
    if not of.get(key):
        return f"fewer than {_number(1000)}" if key in of else NONE
    asked = of.get(f"{key}_asked", 0)
    return _number(of[key]) + (f" of {_number(asked)}" if of[key] < asked else "")


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    if not seconds:
        return NONE
    scaled, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{scaled:,.0f} {unit}" if scaled >= 10 else f"{scaled:.1f} {unit}"


def _rate(seconds: float | None) -> str:
    return _number(float(f"{1 / seconds:.2g}")) if seconds else NONE


def _share(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


if __name__ == "__main__":
    write(load())
