"""The pytest plugin of holdfast-lab: the options of the conformance suite. `-p no:holdfast_lab` switches it off.

pytest loads it in every run, so it imports nothing of holdfast. The fixtures are in holdfast_lab.conformance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast_lab.conformance.cases import Case

# pytest finds the modules of a plugin in the file list of its distribution. An editable installation has no such list.
pytest.register_assert_rewrite("holdfast_lab.conformance")


class Hooks:
    """Hooks for a conftest.py."""

    @pytest.hookspec(firstresult=True)
    def pytest_holdfast_cases(self, config: pytest.Config) -> Sequence[Case] | None:
        """Return the backends that the conformance suite runs on without `--holdfast-url`."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--holdfast-url",
        metavar="URL",
        help="run the conformance suite (--pyargs holdfast_lab.conformance) on this store, of any installed backend. "
        "{fresh} in the URL is replaced in each test; without it the path is extended",
    )
    group.addoption(
        "--all-methods",
        action="store_true",
        help="run all conformance tests on every method of a backend, each with both threads and asyncio",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of the suite."""
    for marker in (
        "counts_waiters: only for stores that show waiters",
        "needs(primitive, ...): only for stores that have these primitives",
        "not_on(name, ...): not on these backends",
        "cases(list): on these backends, instead of all",
        "on_every_method: also on every other method of a backend, where only a part of the other tests runs",
    ):
        config.addinivalue_line("markers", marker)
