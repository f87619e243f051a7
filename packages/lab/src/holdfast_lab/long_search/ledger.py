"""The ledger of a search: a file of JSON lines, each of which records what was searched and found.

A line is written after its worlds have run, and is complete on the disk before the next one. So a search that is killed
loses only the worlds in progress. An incomplete last line, after a power failure, is removed by the next search. Files
of several machines can be concatenated: worlds that were searched twice count once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from holdfast import Client, ConfigurationError, Lease

SEEDS, EXHAUSTIVE, CANCELS = "seeds", "exhaustive", "cancels"  # kinds of searches


class Key(NamedTuple):
    """The subject of a search: the code, and the kind of worlds."""

    code: str
    backend: str
    workload: str
    kind: str  # one of the constants above
    mutant: str = ""  # the deliberate bug in the code; none if empty


class Violation(NamedTuple):
    """A broken promise, or an error that ended a world."""

    failure: str
    seed: int | None  # None in an exhaustive search, and for cancellations


class Record(NamedTuple):
    """The result of the worlds `first` to `first + worlds - 1`, which are seeds, or all worlds of another kind."""

    key: Key
    first: int
    worlds: int
    seconds: float  # of one core
    violations: tuple[Violation, ...] = ()

    @property
    def stop(self) -> int:
        return self.first + self.worlds

    def to_line(self) -> str:
        key = {name: value for name, value in self.key._asdict().items() if value}
        data = {**key, "first": self.first, "worlds": self.worlds, "seconds": round(self.seconds, 3)}
        if self.violations:
            data["violations"] = [violation._asdict() for violation in self.violations]
        return json.dumps(data) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Parse a line.

        Raises:
            ValueError: it is not a record.
        """
        try:
            data: dict[str, Any] = json.loads(line)
            return cls(
                Key(data["code"], data["backend"], data["workload"], data["kind"], data.get("mutant", "")),
                int(data["first"]),
                int(data["worlds"]),
                float(data["seconds"]),
                tuple(Violation(each["failure"], each["seed"]) for each in data.get("violations", ())),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not a record ({type(error).__name__}: {error})") from error


class Searched:
    """All that was searched of one key: ranges of seeds, without overlaps."""

    def __init__(self) -> None:
        self.ranges: list[range] = []
        self.seconds = 0.0
        self.violations: set[Violation] = set()

    @property
    def worlds(self) -> int:
        return sum(map(len, self.ranges))

    def add(self, record: Record) -> None:
        """Add a record. Worlds that were searched before add no time."""
        added = sum(map(len, self.missing(range(record.first, record.stop))))
        self.seconds += record.seconds * added / record.worlds if record.worlds else 0.0
        self.violations.update(record.violations)
        if added:
            self.ranges = list(_merged([*self.ranges, range(record.first, record.stop)]))

    def missing(self, wanted: range) -> Iterator[range]:
        """The parts of a range that were not searched."""
        start = wanted.start
        for known in self.ranges:
            if known.stop > start and known.start < wanted.stop:
                if start < known.start:
                    yield range(start, known.start)
                start = known.stop
        if start < wanted.stop:
            yield range(start, wanted.stop)


def _merged(ranges: Iterable[range]) -> Iterator[range]:
    start = stop = None
    for each in sorted(ranges, key=lambda each: each.start):
        if start is None or stop is None:
            start, stop = each.start, each.stop
        elif each.start > stop:
            yield range(start, stop)
            start, stop = each.start, each.stop
        else:
            stop = max(stop, each.stop)
    if start is not None and stop is not None:
        yield range(start, stop)


Contents = dict[Key, Searched]


def contents_of(records: Iterable[Record]) -> Contents:
    """The contents of these records, by key."""
    contents: Contents = {}
    for record in records:
        contents.setdefault(record.key, Searched()).add(record)
    return contents


def read(path: Path) -> list[Record]:
    """All records of a file; none if it does not exist.

    Raises:
        ConfigurationError: the file cannot be read, or is not a ledger.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the ledger {path} cannot be read: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break  # the last one, which was not written completely
        try:
            records.append(Record.from_line(line))
        except ValueError as error:
            raise ConfigurationError(f"the ledger {path} has an invalid line {number}: {error}") from error
    return records


class Ledger:
    """A ledger that this process alone writes. `open_ledger` makes it."""

    def __init__(self, file: int, lease: Lease, contents: Contents) -> None:
        self.contents = contents
        self._file = file
        self._lease = lease

    def append(self, record: Record) -> None:
        """Write a record to the disk.

        Raises:
            LockLost: this process was stopped for so long that another one may write the ledger now.
        """
        self._lease.check()
        line = record.to_line().encode()
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.contents.setdefault(record.key, Searched()).add(record)

    def of(self, key: Key) -> Searched:
        """All that was searched of a key."""
        return self.contents.get(key) or Searched()


@contextmanager
def open_ledger(path: Path) -> Iterator[Ledger]:
    """Lock a ledger and read it; make it, if it does not exist. The lock file is beside it.

    Raises:
        AcquireTimeout: another process writes it.
        ConfigurationError: the file cannot be read or written, or is not a ledger.
    """
    path = path.absolute()
    with Client(f"sqlite://{quote(str(path))}.lock") as client, client.lock(path.name, timeout=0) as lease:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConfigurationError(f"the ledger {path} cannot be written: {error}") from error
        try:
            contents = contents_of(read(path))
            _remove_incomplete_line(file)
            yield Ledger(file, lease, contents)
        finally:
            os.close(file)


def _remove_incomplete_line(file: int) -> None:
    content = os.pread(file, os.fstat(file).st_size, 0)
    os.ftruncate(file, content.rfind(b"\n") + 1)
