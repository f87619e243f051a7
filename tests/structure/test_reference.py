"""The reference has every public name, matches the docstrings, and its examples are correct."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import re
import uuid
from typing import Any

import pytest

import holdfast
from tests.structure.test_errors import EXAMPLES as EVERY_ERROR
from tools import reference

PAGE = reference.PAGE.read_text()
HEADINGS = {line.lstrip("#").strip() for line in PAGE.splitlines() if line.startswith("##")}
EXAMPLES = reference.read_examples()


def test_the_reference_is_current() -> None:
    assert reference.page() == PAGE, "run `make docs`"


@pytest.mark.parametrize("name", holdfast.__all__)
def test_the_reference_has_every_public_name(name: str) -> None:
    if name.startswith("Async"):
        assert f"`{name}`: the same for asyncio" in PAGE
    else:
        assert name in HEADINGS


def test_dir_of_the_package_lists_the_documented_names() -> None:
    assert {name for name in dir(holdfast) if not name.startswith("_")} == set(holdfast.__all__)


def objects() -> list[Any]:
    """Return one object of each public kind."""

    def of_client(client: Any) -> list[Any]:
        lock, several = client.lock("a"), client.lock_all(["b", "c"])
        return [client, lock, client.rwlock("d"), client.semaphore("e", 2), client.election("f"), several]

    with holdfast.Client("memory://") as client, client.election("f") as lease, client.lock_all(["b", "c"]) as leases:
        info, leader = client.inspect("f"), client.election("f").leader()
        instances = [*of_client(client), lease, leases, info, info.holders[0], leader, client.guarantees]
    instances += [holdfast.Event("acquired", "a"), *EVERY_ERROR, holdfast.HoldfastWarning("")]

    async def of_asyncio() -> list[Any]:
        async with (
            holdfast.AsyncClient("memory://") as client,
            client.lock("a") as lease,
            client.lock_all(["b", "c"]) as leases,
        ):
            return [*of_client(client), lease, leases]

    return instances + asyncio.run(of_asyncio())


@pytest.mark.parametrize("instance", objects(), ids=lambda instance: type(instance).__name__)
def test_dir_of_an_object_lists_only_documented_names(instance: Any) -> None:
    kind = type(instance)
    builtin = next(base for base in kind.__mro__ if not base.__module__.startswith("holdfast"))  # tuple, Exception

    public = {word for word in dir(instance) if not word.startswith("_")} - set(dir(builtin))

    assert public == documented(kind)


def documented(kind: type) -> set[str]:
    """Return the names under the heading of this class and of its base classes."""
    name = kind.__name__.removeprefix("Async")
    words = {heading.partition(".")[2] for heading in HEADINGS if heading.startswith(f"{name}.")}
    entry = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    words |= set(re.findall(r"^\| `(\w+)` \|", entry, re.MULTILINE))
    attributes = re.search(r"Attributes: (.*)\.", entry)
    words |= set(re.findall(r"\w+", attributes[1])) if attributes else set()
    parent = re.search(r"Everything else is as in `(\w+)`", entry)
    return words | (documented(getattr(holdfast, parent[1])) if parent else set())


@pytest.mark.parametrize("module", reference.GUARDS)
def test_the_reference_has_every_guard(module: str) -> None:
    guards = reference.public_of_module(importlib.import_module(f"holdfast.fencing.{module}"))

    assert guards
    assert {f"fencing.{module}.{name}" for name in guards} <= HEADINGS


@pytest.mark.parametrize("module", ["django", "testing"])
def test_the_reference_has_every_name_of_a_module(module: str) -> None:
    assert {f"{module}.{name}" for name in importlib.import_module(f"holdfast.{module}").__all__} <= HEADINGS


def test_the_reference_has_every_error_and_option() -> None:
    errors = importlib.import_module("holdfast.errors")

    assert reference.public_of_module(errors).keys() <= HEADINGS
    for option in holdfast.LockOptions.__annotations__:
        assert f"| `{option}` |" in PAGE


def test_every_example_belongs_to_an_entry() -> None:
    assert EXAMPLES.keys() <= HEADINGS


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_correct(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setattr("holdfast.default._clients.made", {})
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        example = doctest.DocTestParser().get_doctest(
            EXAMPLES[name], {"holdfast": holdfast, "client": client, "other": other}, name, None, None
        )
        output: list[str] = []

        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.append)

    assert results.attempted > 0
    assert results.failed == 0, "".join(output)
    vars(importlib.import_module("holdfast.default"))["_clients"].close()
