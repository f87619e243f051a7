"""CPython's cases for threading's Lock, RLock, Semaphore and BoundedSemaphore, on our locks, on every backend.

The hazard: a lock has the interface of threading, but behaves differently in a rare case.
"""

from __future__ import annotations

from tests.conformance.cpython import sources
from tests.conformance.cpython.threads import make_classes

LOCK_TESTS = sources.load("test.lock_tests")

globals().update({case_class.__name__: case_class for case_class in make_classes(LOCK_TESTS)})
