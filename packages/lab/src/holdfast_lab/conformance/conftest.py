"""The hooks and fixtures of the suite, which pytest finds here by their names."""

from __future__ import annotations

from holdfast_lab.conformance.fixtures import (
    _collect_dropped_leases,
    _interruptible,
    _private_default_store,
    caplog,
    lab,
    pool,
    pytest_generate_tests,
    pytest_pyfunc_call,
    store,
    store_url,
    tmp_path,
)

__all__ = [
    "_collect_dropped_leases",
    "_interruptible",
    "_private_default_store",
    "caplog",
    "lab",
    "pool",
    "pytest_generate_tests",
    "pytest_pyfunc_call",
    "store",
    "store_url",
    "tmp_path",
]
