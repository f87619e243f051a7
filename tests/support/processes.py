"""The worker processes of the conformance suite, for all tests. Their commands are in tests/support/worker.py."""

from __future__ import annotations

import os

from holdfast_lab.conformance.processes import (
    PATIENCE,
    Channel,
    Refused,
    Worker,
    WorkerPool,
    eventually,
    now,
    process_state,
    stop_process,
)

__all__ = [
    "PATIENCE",
    "WORKER",
    "Channel",
    "Refused",
    "Worker",
    "WorkerPool",
    "eventually",
    "now",
    "process_state",
    "stop_process",
]

WORKER = os.path.join(os.path.dirname(__file__), "worker.py")
