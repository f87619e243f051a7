"""Hazard: an invoice is charged twice, or two postings to one account overlap. The example does neither."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.redis.shared import fresh_url

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    broker = re.sub(r"/0\?.*", "/7", fresh_url())  # a database that no lock is in
    return {**os.environ, "BROKER_URL": broker, "HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db"}


@pytest.fixture
def output(tmp_path: Path, environment: dict[str, str]) -> Iterator[Path]:
    """The output of a worker with two processes."""
    path = tmp_path / "output"
    with path.open("wb") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_invoices", "worker", "--concurrency", "2", "-l", "INFO"],
            cwd=EXAMPLES,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    yield path
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def test_the_example_charges_each_invoice_once(output: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "celery_invoices.py", "7", "7", "8", "9"]
    sent = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=True)
    eventually(lambda: output.read_text().count("end of invoice") == 3, within=60)

    messages = dict(re.findall(r"invoice (\d): message (\S+),", sent.stdout))
    assert len(set(messages.values())) == 3
    assert sorted(re.findall(r"charge invoice (\d)", output.read_text())) == ["7", "8", "9"]
    of_account = re.findall(r"account 1: (begin|end) of invoice (\d), fence \d+", output.read_text())
    assert [word for word, _ in of_account] == ["begin", "end"] * 2
    assert of_account[0][1] == of_account[1][1]
