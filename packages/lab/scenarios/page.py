"""docs/failovers.md, from the stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from packages.lab.scenarios.registry import SCENARIOS
from packages.lab.scenarios.results import Result
from packages.lab.scenarios.scenario import Scenario

_HEAD = ("scenario", "declared", "leases", "faults", "result", "recovery: median, longest")


def page(results: Mapping[str, Result]) -> str:
    """The whole page. A scenario without a result is not in it."""
    known = [(SCENARIOS[name], results[name]) for name in SCENARIOS if name in results]
    lines = [_INTRODUCTION.format(load=_load(results))]
    for group, heading in _HEADINGS.items():
        chosen = [(scenario, result) for scenario, result in known if scenario.group == group]
        lines += [heading, "", _BEGIN, *_table(chosen), _END, ""]
        lines += [_BEGIN, *(f"- `{scenario.name}`: {scenario.text}." for scenario, _ in chosen), _END, ""]
    return "\n".join([*lines, _READING])


def _load(results: Mapping[str, Result]) -> str:
    loads = [load for result in results.values() for load in result.data["load"]]
    return f"{min(loads, default=0):.0f} to {max(loads, default=0):.0f}"


def _table(chosen: Sequence[tuple[Scenario, Result]]) -> list[str]:
    rows = [_row(scenario, result) for scenario, result in chosen]
    return [_line(_HEAD), _line(["---"] * len(_HEAD)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(scenario: Scenario, result: Result) -> list[str]:
    data = result.data
    declared = data["guarantees"] or {}
    recoveries = result.recoveries()
    times = [seconds for each in recoveries.values() for seconds in each]
    is_ours = len(recoveries) <= _SHOWN_MAX
    faults = ", ".join(f"{len(each)} `{name}`" for name, each in recoveries.items()) if is_ours else f"{len(times)}"
    parts = recoveries.items() if is_ours else [("", times)]
    return [
        f"`{result.name}`",
        f"{declared['exclusion']}, {declared['fence']}" if declared else "-",
        f"{data['grants']:,}",
        faults,
        _verdict(scenario, result),
        "; ".join(f"{f'`{name}` ' if name else ''}{_recovery(each)}" for name, each in parts) or "-",
    ]


_SHOWN_MAX = 2  # kinds of faults in a row; the built-in faults are counted together


def _verdict(scenario: Scenario, result: Result) -> str:
    broken, limited = result.violated(scenario)
    parts = [f"**{promise} broken ({result.count(promise):,})**" for promise in broken]
    parts += [f"{promise} broken ({result.count(promise):,}), as declared" for promise in limited]
    return ", ".join(parts) or "held"


def _recovery(times: Sequence[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    if not known:
        return "not in time"
    longest = f"{max(known):.1f} s" if len(known) == len(times) else "not in time"
    return f"{median(known):.1f} s, {longest}"


_BEGIN, _END = "<!-- failovers: by `make failovers` -->", "<!-- /failovers -->"  # not counted as words of the page

_INTRODUCTION = """\
# Failovers of real servers

`make failovers` writes this page. Each row is one run of [`holdfast verify`](verify.md) with seed 1 and four worker
processes, on servers of its own, most of them for 120 s. The servers are killed, restarted, promoted and moved by the
functions in `packages/lab/scenarios/`, at the request of `--fault` commands.

All servers and clients ran on one machine with two cores, which other work kept busy (a load of {load}), so times to
recover are longer than on a machine of their own. To repeat a row:

<!-- not run: it needs two minutes and the servers of all stores -->
```bash
make failovers ARGS="--only sentinel-failover --seconds 120"
```
"""

_HEADINGS = {
    "failover": "## Failovers, restarts and migrations",
    "plain": "## Built-in faults on healthy servers",
    "broken": """\
## Broken on purpose

`holdfast verify` must find these. `--report FOLDER` writes a page with pictures of the violations.""",
}

_READING = """\
## How to read this

- *declared* is what `client.guarantees` reports for exclusion and fences on these servers after the first connection.
- *held*: no violation of any promise that was exercised. That is not a proof.
- *broken, as declared*: the store declares best-effort (or cache) for this guarantee, or its page states this limit,
  and the run shows why. A resource that checks [fences](fencing.md) accepted no write of a former holder, unless
  `writes` is listed too.
- The time to recover counts from the death of a server (`crash`, `restart`), from the end of an orderly change
  (`switch`), or from the announcement of a move, until every worker and every contended lock has had a grant again.
  After a crash it includes the time in which the other servers notice the death and elect or promote another one; the
  servers here have short timeouts (Sentinels 0.5 s, a Cluster 1 s, elections of etcd 0.2 s). *not in time*: more
  than 30 s.
- The former primary is stopped, or takes no writes, before another server is promoted. `sentinel-split-brain` shows the
  other case.
- The URL for PostgreSQL names both servers with `target_session_attrs=read-write`. Clients of MariaDB use one address
  that follows the primary, as with a virtual IP.
- Asynchronous replication loses the last grants in a crash. PostgreSQL and MariaDB report such replicas, and holdfast
  declares best-effort there. With synchronous or semi-synchronous replication, exclusion is that of one durable server.
"""
