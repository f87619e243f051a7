"""Hazard: the client of an event loop that has ended, or of settings that a test has changed, is never closed."""

from __future__ import annotations

from pathlib import Path

from tests.integration.django.conftest import Project


def test_the_client_of_an_event_loop_is_closed_when_the_loop_ends(small_project: Project) -> None:
    code = """
import asyncio, holdfast.django
from holdfast.django import clients
async def use():
    async with holdfast.django.async_client().lock("a"):
        assert holdfast.django.async_client() is holdfast.django.async_client()
    return holdfast.django.async_client()
first, second = asyncio.run(use()), asyncio.run(use())
print(first is second, first._closed, second._closed, len(clients._async_clients))
"""

    assert small_project.python(code) == "False True True 0\n"


def test_a_changed_setting_gives_new_clients(small_project: Project) -> None:
    code = """
import holdfast.django
from django.test import override_settings
@holdfast.django.locked("a")
def url():
    return holdfast.django.client().url
first = holdfast.django.client()
before = url()
with override_settings(HOLDFAST={"default": {"URL": "memory://"}}):
    print(before.partition(":")[0], first._closed, url(), url() == before)
print(url() == before)
"""

    assert small_project.python(code) == "sqlite True memory:// False\nTrue\n"


def test_a_changed_setting_closes_the_client_of_a_loop_and_not_its_successor(small_project: Project) -> None:
    code = """
import asyncio, holdfast.django
from django.test import override_settings
async def main():
    first = holdfast.django.async_client()
    with override_settings(HOLDFAST={"default": {"URL": "memory://"}}):
        second = holdfast.django.async_client()
        while not first._closed:
            await asyncio.sleep(0.01)
        async with second.lock("a"):
            return first is second, second is holdfast.django.async_client()
print(asyncio.run(main()))
"""

    assert small_project.python(code) == "(False, True)\n"


def test_each_alias_has_a_client(small_project: Project, tmp_path: Path) -> None:
    small_project.use(default={"URL": "memory://"}, jobs={"URL": f"sqlite://{tmp_path}/jobs.db", "TTL": "5s"})
    code = """
from holdfast.django import client
with client("jobs").lock("a"):
    print(client("jobs") is client("jobs"), client().inspect("a").holders == ())
    print(0 < client("jobs").inspect("a").holders[0].remaining <= 5)
try:
    client("job")
except Exception as error:
    print(type(error).__name__, error)
"""

    assert small_project.python(code).splitlines() == [
        "True True",
        "True",
        "ConfigurationError HOLDFAST has no entry 'job' (did you mean 'jobs'?)",
    ]


def test_decorators_take_coroutine_functions(small_project: Project) -> None:
    small_project.use(default={"URL": "memory://"})
    code = """
import asyncio, holdfast.django
@holdfast.django.once_per("1h", name="job", skipped="skipped")
async def job(): return "ran"
@holdfast.django.once("key:{number}", result=True)
async def charge(number): return number
async def main(): return [await job(), await job(), await charge(1), await charge(1)]
print(asyncio.run(main()))
"""

    assert small_project.python(code) == "['ran', 'skipped', 1, 1]\n"
