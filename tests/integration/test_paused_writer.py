"""Hazard: a writer paused past its ttl overwrites what its successor wrote. The example shows it.

docs/fencing.md shows the code of the example and its output.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "paused_writer.py"
DOCS = (ROOT / "docs" / "fencing.md").read_text()


def test_the_late_write_loses_data_without_the_guard_and_is_refused_with_it() -> None:
    started = time.monotonic()

    shown = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)

    assert shown.returncode == 0, shown.stderr
    rows = [re.split(r" {2,}", line.strip()) for line in shown.stdout.splitlines()]
    assert rows[-3:] == [
        ["worker 1 goes on and sells 5", "wrote 95", "StaleFence"],
        ["left in stock", "95", "70"],
        ["sales lost", "30", "0"],
    ]
    assert "Traceback" not in shown.stderr
    assert shown.stdout in DOCS
    assert time.monotonic() - started >= 2.9  # the lease expired: the lock was not granted early


def test_the_docs_have_the_code_of_the_example() -> None:
    source = EXAMPLE.read_text()
    function = source[source.index("def sell(") : source.index("def work(")].strip()

    assert f"```python\n{function}\n```" in DOCS
