"""docs/simulation.md: knobs that are not there any more, or that nobody described. Run this file to write them."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.sim import faults

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
BETWEEN = re.compile(r"(?<=-->\n)[^<]*(?=<!-- /knobs -->)")
FIELD = re.compile(r"^    (?P<name>\w+): float = [\d.]+  # (?P<meaning>.*)$", re.MULTILINE)


def table() -> str:
    """Every kind of fault, as its own source says it."""
    meanings = {found["name"]: found["meaning"] for found in FIELD.finditer(Path(faults.__file__).read_text())}
    rows = [f"| `{kind}` | {getattr(faults.ALL, kind):g} | {meanings[kind]} |" for kind in faults.KINDS]
    return "\n".join(["| kind | often | what happens |", "|---|---|---|", *rows, ""])


def test_every_knob_is_in_the_document_as_it_is_in_the_code() -> None:
    (written,) = BETWEEN.findall(DOCUMENT.read_text())

    assert written == table()


if __name__ == "__main__":
    DOCUMENT.write_text(BETWEEN.sub(table().replace("\\", "\\\\"), DOCUMENT.read_text(), count=1))
