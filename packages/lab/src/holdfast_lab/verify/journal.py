"""The journal of one worker process: a line for each observation, written before the worker acts on it.

Each line is one `write` to a file that was opened for appending, so a killed process loses no line that it wrote, and
several threads and forked children can share the file. The clock is the same for all processes of a machine. A line
is a JSON object with the kind of the observation, its time, its client and more facts:

    started   a call to acquire begins: ticket, lock, timeout
    granted   the call returned a lease: ticket, lock, fence (or null); limit, exclusive and group if it is no mutex
    failed    the call returned no lease: ticket, lock, outcome, reason
    held      the lease was held at this time, which was read before the check: ticket, deadline (or null)
    not held  the lease was not held when the check returned: ticket
    release   a call to release begins: ticket
    released  it has ended: ticket, outcome
    lost      the library reported the loss of a lease: lock, fence
    event     the library delivered an event: attempt, lock, event, outcome
    forked    a child asked whether it holds a lease of its parent: lock, held, ticket
    problem   the load itself failed: text

`turns` and `worker` write these observations; only `merge` reads the facts of a line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.runtimes.system import now

TICKETS = 1_000_000_000  # tickets that one client may use
_PIDS = 1 << 22  # process ids of Linux are smaller


class Journal:
    """Appends the observations of one client, from any thread."""

    def __init__(self, path: str, client: str, number: int) -> None:
        """`number` is different for each client of a run; it makes tickets unique."""
        self.client = client
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._tickets = itertools.count(number * TICKETS + 1)

    def new_ticket(self) -> int:
        return next(self._tickets)

    def write(self, kind: str, at: float | None = None, **facts: object) -> None:
        """Append one observation, at this time or now."""
        line = json.dumps({"kind": kind, "at": now() if at is None else at, "client": self.client, **facts})
        os.write(self._fd, f"{line}\n".encode())

    def become_child(self) -> None:
        """Continue in a forked process, as another client with other tickets."""
        self.client = f"{self.client}/{os.getpid()}"
        self._tickets = itertools.count((next(self._tickets) // TICKETS * _PIDS + os.getpid()) * TICKETS * TICKETS + 1)

    def close(self) -> None:
        os.close(self._fd)


def read(folder: Path) -> list[dict[str, Any]]:
    """All observations of all journals in this folder, in the order of time; a half-written last line is skipped."""
    lines = [line for file in sorted(folder.glob("*.journal")) for line in _lines(file)]
    lines.sort(key=lambda line: float(line["at"]))
    return lines


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)
