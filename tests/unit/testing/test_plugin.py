"""The pytest plugin in a project of its own, as it is installed: fixtures, the check for held locks, and its cost."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import memory_async_client, memory_client, memory_default

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n")
    return pytester


def test_the_fixtures_work(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio, os
        import holdfast

        def test_client(holdfast_client):
            with holdfast_client.lock("a"):
                assert holdfast_client.lock("a").locked()

        def test_isolation(holdfast_client):
            assert holdfast_client.locks() == []

        def test_async_client(holdfast_async_client):
            async def program():
                async with holdfast_async_client.lock("a"):
                    return await holdfast_async_client.lock("a").locked()

            assert asyncio.run(program())

        def test_default(holdfast_default):
            with holdfast.lock("a"):
                assert [info.name for info in holdfast_default.locks()] == ["a"]
            assert holdfast.default_client() is holdfast_default
            assert holdfast.Client().url == holdfast_default.url == os.environ["HOLDFAST_URL"]

        def test_world(holdfast_world):
            client = holdfast_world.client()
            with holdfast_world.hold("a"):
                waiter = holdfast_world.start(client.lock("a").acquire, timeout=5)
                holdfast_world.clock.advance(5)
            assert waiter.result() is None
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=5)


@pytest.mark.parametrize("mark", ["", "@pytest.mark.holdfast_allow_held"])
def test_a_lock_that_is_held_at_the_end_fails_the_test_unless_it_is_marked(project: pytest.Pytester, mark: str) -> None:
    project.makepyfile(
        f"""
        import asyncio
        import pytest
        import holdfast

        kept = []

        {mark}
        def test_client(holdfast_client):
            kept.append(holdfast_client.lock("report").acquire())

        {mark}
        def test_async_client(holdfast_async_client):
            async def program():
                kept.append(await holdfast_async_client.lock("report").acquire())

            asyncio.run(program())

        {mark}
        def test_default(holdfast_default):
            kept.append(holdfast.lock("report").acquire())

        {mark}
        @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        def test_dropped(holdfast_client):
            holdfast_client.lock("report").acquire()
        """
    )

    result = project.runpytest_subprocess()

    result.assert_outcomes(passed=4, errors=0 if mark else 4)
    if not mark:
        result.stdout.fnmatch_lines(["*AssertionError: the test ends while locks are held: 'report' (by MainThread)*"])


def test_pytest_imports_holdfast_only_for_its_fixtures(project: pytest.Pytester) -> None:
    project.makeconftest("import sys\nassert 'pytest_holdfast' in sys.modules\nassert 'holdfast' not in sys.modules\n")
    project.makepyfile(
        """
        import sys

        def test_without_a_fixture():
            assert "holdfast" not in sys.modules
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plugin_can_be_switched_off(project: pytest.Pytester) -> None:
    project.makepyfile("def test_client(holdfast_client):\n    pass\n")

    result = project.runpytest_subprocess("-p", "no:holdfast")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'holdfast_client' not found"])


def test_the_stores_are_isolated() -> None:
    with memory_client() as client, memory_client() as other, client.lock("a"):
        assert other.locks() == []


def test_the_default_client_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://before")
    before = holdfast.default_client()

    with memory_default() as client:
        assert holdfast.default_client() is client

    assert holdfast.default_client() is before
    assert os.environ["HOLDFAST_URL"] == "memory://before"
    before.close()


def test_a_held_lock_is_allowed_on_request() -> None:
    with memory_client(allow_held=True) as client:
        lease = client.lock("a").acquire()
        assert lease is not None
    with pytest.raises(AssertionError, match="held: 'b'"), memory_async_client(), memory_client() as client:
        lease = client.lock("b").acquire()


class UnittestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.client = self.enterContext(memory_default())

    def test_a_default_client_works_with_unittest(self) -> None:
        with holdfast.lock("a"):
            assert self.client.lock("a").locked()


SHOP = """
import holdfast

client = holdfast.Client()


def pay_all(payments, pay):
    with client.lock("payments") as lease:
        for payment in payments:
            lease.check()
            pay(payment)
"""


def test_a_client_of_a_module_keeps_its_store_and_the_message_says_so(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{project.path}/locks.db")
    project.makepyfile(
        """
        import shop

        def test_it(holdfast_world, holdfast_default):
            assert shop.client.url != holdfast_default.url
            holdfast_world.assert_checks_lease(lambda step: shop.pay_all([1], step))
        """,
        shop=SHOP,
    )

    result = project.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no lock of this world was held: * does it use a client of `world.client()`?"])


def test_the_examples_of_the_guide_are_tests_that_pass(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{project.path}/locks.db")
    guide = Path(__file__).parents[3] / "docs" / "testing.md"
    examples = "\n".join(re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL))
    project.makepyfile(examples, shop=SHOP)

    result = project.runpytest_subprocess()

    result.assert_outcomes(passed=examples.count("def test_"))
    assert "assert_checks_lease" in examples
