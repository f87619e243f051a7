"""The README says what the code promises: its table of guarantees is made from the data, its examples are run.

As a program (`make readme`) this writes the table.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.guarantees import Guarantees
from holdfast.url import SCHEMES

README = Path(__file__).parents[2] / "README.md"
MARKED = re.compile(r"(<!-- guarantees: .*? -->\n)(.*?)(<!-- /guarantees -->)", re.DOTALL)
EXAMPLE_URLS = {"memory": "memory://", "sqlite": "sqlite:///var/tmp/holdfast-readme.db"}


def table() -> str:
    lines = ["| backend | " + " | ".join(Guarantees._fields) + " |", "|---" * (1 + len(Guarantees._fields)) + "|"]
    for scheme in SCHEMES:
        promised = holdfast.Client(EXAMPLE_URLS[scheme]).guarantees.as_dict()
        lines.append(f"| `{scheme}://` | " + " | ".join(promised.values()) + " |")
    return "\n".join(lines) + "\n"


def test_the_table_of_guarantees_is_what_the_backends_claim() -> None:
    found = MARKED.search(README.read_text())

    assert found is not None
    assert found[2] == table(), "run `make readme`"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/default.db")
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 4
    names: dict[str, Any] = {"holdfast": holdfast}

    for example in examples:
        code = example.replace("sqlite:///var/lib/app/locks.db", f"sqlite://{tmp_path}/locks.db").replace(
            "fence=…", "fence=1"
        )
        if "async with" in code:
            code = f"import asyncio\nasync def main():\n{textwrap.indent(code, '    ')}\nasyncio.run(main())"
        if ".holders[0]" in code:
            code = f"held = client.lock('order:42').acquire()\n{code}\nheld.release()"
        exec(compile(code, str(README), "exec"), names)  # noqa: S102  (that is the point)

    names["client"].close()
    holdfast.default_client().close()


if __name__ == "__main__":
    written = MARKED.sub(lambda found: found[1] + table() + found[3], README.read_text())
    sys.exit(README.write_text(written) < 1)
