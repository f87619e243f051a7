"""The table of cases that do not run is correct, and all other cases run.

The hazard: a case does not run any more, because it was renamed, shadowed, or left out without a reason.
"""

from __future__ import annotations

import sys
import unittest
from typing import Any

import pytest

from tests.conformance.backends import BACKENDS
from tests.conformance.cpython import aio, not_run, sources, test_asyncio, test_threads, threads


def test_every_class_of_cases_runs_on_every_backend_or_is_named_as_left_out() -> None:
    collected = sorted(
        (_cases_of(case_class), case_class.suite.release_mode, case_class.backend.name) for case_class in _our_classes()
    )
    wanted = [
        (f"{module}.{suite.case}", suite.release_mode, backend.name)
        for module, suites in (("lock_tests", threads.SUITES), ("test_locks", aio.SUITES))
        for suite in suites
        for backend in BACKENDS
    ]

    assert collected == sorted(wanted)
    assert {case for case, _, _ in wanted} | set(not_run.LEFT_OUT) == set(_cpythons_classes())
    assert {case for case, _, _ in wanted}.isdisjoint(not_run.LEFT_OUT)


def test_our_classes_run_all_cases_of_cpython_unchanged() -> None:
    for ours in _our_classes():
        original = _cpythons_classes()[_cases_of(ours)]
        tests = _tests(original)

        assert tests, "CPython's class has no cases: is it still the right one?"
        assert _tests(ours) == tests
        for test in tests:
            # The cases for asyncio are compiled again (sources.load_awaited), from the same lines of the same file.
            assert _written_at(ours, test) == _written_at(original, test)


def test_every_entry_of_the_table_names_a_case() -> None:
    known = {
        key
        for ours in _our_classes()
        for test in _tests(ours)
        for key in not_run.keys(
            f"{_cases_of(ours)}.{test}", release_mode=ours.suite.release_mode, backend=ours.backend.name
        )
    }
    in_newer_pythons = {case for case, version in not_run.SINCE.items() if sys.version_info < version}

    assert set(not_run.NOT_RUN) - known - in_newer_pythons == set()
    assert set(not_run.SINCE) - set(not_run.NOT_RUN) == set()


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_python_without_its_tests_skips_ours_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setitem(sys.modules, "test.lock_tests", None)  # an import raises ModuleNotFoundError
    monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match="libpython3-testsuite"):
        sources.load("test.lock_tests")


def _our_classes() -> list[type[Any]]:
    """The classes that pytest collects."""
    members = [*vars(test_threads).values(), *vars(test_asyncio).values()]
    return [member for member in members if isinstance(member, type) and issubclass(member, unittest.TestCase)]


def _cases_of(ours: type[Any]) -> str:
    return f"{'lock_tests' if issubclass(ours, threads.OnThreads) else 'test_locks'}.{ours.suite.case}"


def _cpythons_classes() -> dict[str, type[Any]]:
    """All classes of cases, without their base classes."""
    cases = {}
    for name in ("test.lock_tests", "test.test_asyncio.test_locks"):
        module = sources.load(name)
        classes = [
            member
            for member in vars(module).values()
            if isinstance(member, type) and issubclass(member, unittest.TestCase)
        ]
        bases = {base for class_ in classes for base in class_.__mro__[1:]}
        cases.update(
            {f"{name.rpartition('.')[2]}.{class_.__name__}": class_ for class_ in classes if class_ not in bases}
        )
    return cases


def _tests(cases: type[Any]) -> list[str]:
    assert getattr(cases, "__test__", True)
    return list(unittest.TestLoader().getTestCaseNames(cases))


def _written_at(cases: type[Any], test: str) -> tuple[str, int]:
    code = getattr(cases, test).__code__
    return code.co_filename, code.co_firstlineno
