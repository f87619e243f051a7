"""CPython's cases for asyncio's Lock and Semaphore, on our locks, on every backend.

The hazard: a cancellation between two steps of an acquire or a release.
"""

from __future__ import annotations

from tests.conformance.cpython import sources
from tests.conformance.cpython.aio import make_classes

TEST_LOCKS = sources.load_awaited("test.test_asyncio.test_locks")

globals().update({case_class.__name__: case_class for case_class in make_classes(TEST_LOCKS)})
