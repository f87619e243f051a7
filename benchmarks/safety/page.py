"""The page docs/safety.md, from the results of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast_lab.verify.adapter import PROMISES
from holdfast_lab.verify.faults import FAULTS

_OTHER_FAULTS = {"data-loss": "the server loses all data, as in a restart without persistence"}


class Cell(NamedTuple):
    """One run: a library under a fault."""

    library: str
    fault: str
    result: Mapping[str, Any] | None  # the JSON of `holdfast verify`; None: it did not run to its end
    problem: str = ""  # the reason
    command: str = ""  # to repeat it

    def promises(self, status: str) -> list[str]:
        """The promises with this result, the most important first. The scope repeats the exclusion."""
        if self.result is None:
            return []
        statuses = {row["promise"]: row["status"] for row in self.result["promises"] if row["promise"] in PROMISES}
        declared = self.result.get("guarantees") or {}
        if declared.get("exclusion") == "best-effort" and statuses.get("exclusion") == "broken":
            statuses["exclusion"] = "documented"
        return [promise for promise, each in statuses.items() if each == status]

    @property
    def text(self) -> str:
        if self.result is None:
            return self.problem
        if not self.result["grants"]:
            return "no lock was granted"
        broken, documented = self.promises("broken"), self.promises("documented")
        parts = [*(f"**{promise}**" for promise in broken), *(f"({promise})" for promise in documented)]
        return ", ".join(parts) or ("not exercised" if self.fault in self.result["not_exercised"] else "held")


def page(cells: Sequence[Cell], versions: Mapping[str, str | None], seconds: float) -> str:
    """The whole page."""
    faults = list(dict.fromkeys(cell.fault for cell in cells))
    by_key = {(cell.library, cell.fault): cell for cell in cells}
    rows = [
        [
            f"{library} {version or ''}".strip(),
            *(by_key[library, fault].text if (library, fault) in by_key else "–" for fault in faults),
        ]
        for library, version in versions.items()
    ]
    known = {name: kind.meaning for name, kind in FAULTS.items()} | _OTHER_FAULTS
    return "\n".join(
        [
            _INTRODUCTION.format(seconds=f"{seconds:g}"),
            *_table(["library", *faults], rows),
            "",
            "## Faults",
            "",
            *_table(["fault", "what happens"], [[fault, known[fault]] for fault in faults]),
            "",
            "## Promises",
            "",
            *_table(["promise", "meaning"], [[name, PROMISES[name]] for name in _named(cells)]),
            "",
            "## Broken promises",
            "",
            _REPEAT,
            "",
            *_violations(cells),
            "",
            _FAIRNESS,
        ]
    )


def _named(cells: Sequence[Cell]) -> list[str]:
    """The promises that the first table names."""
    named = {promise for cell in cells for status in ("broken", "documented") for promise in cell.promises(status)}
    return [promise for promise in PROMISES if promise in named]


def _violations(cells: Sequence[Cell]) -> list[str]:
    lines = []
    for cell in cells:
        if cell.result is None or not (cell.promises("broken") or cell.promises("documented")):
            continue
        counts = {row["promise"]: row["broken"] for row in cell.result["promises"]}
        names = [*cell.promises("broken"), *cell.promises("documented")]
        shown = ", ".join(f"{name} ({counts[name]:,})" for name in names)
        lines += [f"- {cell.library}, {cell.fault}: {shown}  ", f"  `{cell.command}`"]
    return lines or ["None."]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_INTRODUCTION = """\
# Safety of other libraries

`make safety` writes this page. It puts holdfast and the locks of other libraries through the same load, faults and
checkers: [`holdfast verify`](verify.md) with an adapter of a few lines for each library
(`benchmarks/safety/adapters.py`). Each cell is one run of {seconds} seconds with four processes and a ttl of 2 s on a
server of its own. A cell names the promises that were broken; a promise in parentheses was broken within a limit that
the documentation or the declared guarantees of the library state.
"""

_REPEAT = """\
To repeat a run, start the server, install the libraries with `make bench ARGS=--list`, and run the command with the URL
of the server in `.venv-bench`. The seed repeats the choices of the load and of the faults. The timing is that of the
machine, so the number of violations differs from run to run."""

_FAIRNESS = """\
## How to read this

- Every lock with a ttl has the same limit: a holder that is stopped for longer than its ttl goes on after the end of
  its lease. If it is stopped between its last check and its write, no check helps. With a fence the resource refuses
  that write. A library without fences cannot prevent it, so `pause` shows broken writes. This is a limit of such locks,
  not a mistake in their code.
- A library that cannot be asked whether this very lease is still held (sherlock) is believed until its release, as the
  body of a `with` block believes it.
- A promise that a library does not make (fences, order, reports of losses) is not counted against it.
- No other library here says what a forked child may do with an inherited lock. `fork` shows what happens.
- A lock file of the operating system has no ttl: a stopped holder keeps it. That is safe, and others wait.
- "held" means that no violation was found in this run. It is not a proof.
- `data-loss` can break the exclusion of every lock on a single Redis, also of holdfast, which declares it as
  best-effort there. Its fences still grow, so the resource refuses the writes of former holders.
"""
