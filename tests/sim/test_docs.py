"""The table of faults in docs/internals/simulator-workloads.md differs from the code.

Run as a program, this file updates the table.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_lab.sim import faults

DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "simulator-workloads.md"
BETWEEN = re.compile(r"(?<=-->\n)[^<]*(?=<!-- /knobs -->)")
FIELD = re.compile(r"^    (?P<name>\w+): float = [\d.]+  # (?P<meaning>.*)$", re.MULTILINE)


def table() -> str:
    """The table of all kinds of faults, from the comments in faults.py."""
    meanings = {field["name"]: field["meaning"] for field in FIELD.finditer(Path(faults.__file__).read_text())}
    rows = [f"| `{kind}` | {getattr(faults.ALL, kind):g} | {meanings[kind]} |" for kind in faults.KINDS]
    return "\n".join(["| kind | often | what happens |", "|---|---|---|", *rows, ""])


def test_the_document_describes_every_fault_as_the_code_does() -> None:
    (written,) = BETWEEN.findall(DOCUMENT.read_text())

    assert written == table()


if __name__ == "__main__":
    DOCUMENT.write_text(BETWEEN.sub(table().replace("\\", "\\\\"), DOCUMENT.read_text(), count=1))
