"""The published ledger: one line for each range of seeds, and its tables in the documentation."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from holdfast import ConfigurationError
from holdfast_lab.long_search.ledger import SEEDS, Contents, Record, contents_of, read

LEDGER, DOCUMENT = "search-ledger.jsonl", "track-record.md"
_TABLES = re.compile(r"(?<=<!-- ledger -->\n).*?(?=<!-- /ledger -->)", re.DOTALL)


def publish(ledger: Path, folder: Path) -> None:
    """Add a ledger to the published one in the folder, and update the tables of the document there.

    To publish the same ledger again changes nothing.

    Raises:
        ConfigurationError: a file cannot be read or written, or the document has no place for the tables.
    """
    if not ledger.exists():
        raise ConfigurationError(f"there is no ledger {ledger}")
    published, document = folder / LEDGER, folder / DOCUMENT
    contents = contents_of(record for record in [*read(published), *read(ledger)] if not record.key.mutant)
    try:
        text = document.read_text(encoding="utf-8")
        if not _TABLES.search(text):
            raise ConfigurationError(f"{document} must have the lines <!-- ledger --> and <!-- /ledger -->")
        tables = tables_of(contents)
        _replace(published, "".join(record.to_line() for record in _compact(contents)))
        _replace(document, _TABLES.sub(lambda _: tables, text))
    except OSError as error:
        raise ConfigurationError(f"cannot publish the ledger: {error}") from error


def tables_of(contents: Contents) -> str:
    """Two tables: the versions of the code, and the worlds of each backend and workload.

    Raises:
        ConfigurationError: the ledgers are empty.
    """
    if not contents:
        raise ConfigurationError("the ledger has no records")
    versions: dict[str, list[float]] = {}
    worlds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, searched in contents.items():
        row = versions.setdefault(key.code, [0, 0, 0, 0.0])
        row[0 if key.kind == SEEDS else 1] += searched.worlds
        row[2] += len(searched.violations)
        row[3] += searched.seconds / 3600
        if key.kind == SEEDS:
            worlds[key.backend][key.workload] += searched.worlds
    workloads = sorted({workload for row in worlds.values() for workload in row}, reverse=True)
    total = [sum(column) for column in zip(*versions.values(), strict=True)]
    by_version = [_version_row(f"`{code}`", row) for code, row in versions.items()]
    by_backend = [
        f"| {backend} | {' | '.join(f'{row[workload]:,}' for workload in workloads)} |"
        for backend, row in worlds.items()
    ]
    return "\n".join(
        [
            "| commit | random worlds | other runs | violations | hours of one core |",
            "|---|---|---|---|---|",
            *by_version,
            _version_row("all", total),
            "",
            f"| random worlds of | {' | '.join(f'`{workload}`' for workload in workloads)} |",
            f"|---|{'---|' * len(workloads)}",
            *by_backend,
            "",
        ]
    )


def _version_row(name: str, row: list[float]) -> str:
    return f"| {name} | {row[0]:,} | {row[1]:,} | {row[2]:,} | {row[3]:,.1f} |"


def _compact(contents: Contents) -> Iterator[Record]:
    """One record for each range of seeds. Its violations are those of its seeds."""
    for key, searched in contents.items():
        for each in searched.ranges:
            inside = tuple(
                violation
                for violation in sorted(searched.violations, key=str)
                if violation.seed is None or violation.seed in each
            )
            yield Record(key, each.start, len(each), searched.seconds * len(each) / searched.worlds, inside)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
