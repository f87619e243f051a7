"""The reference has everything that is public, says what the docstrings say, and its examples are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import uuid

import pytest

import holdfast
from tools import reference

PAGE = reference.PAGE.read_text()
HEADINGS = {line.lstrip("#").strip() for line in PAGE.splitlines() if line.startswith("##")}
EXAMPLES = reference.read_examples()
# Nothing else belongs to a class that users hold in their hands, whatever its name: each is there for other modules.
KNOWN_INTERNAL = {
    "after_fork",
    "after_fork_in_parent",
    "before_fork",
    "drop",
    "is_held_by",
    "keep",
    "last_of",
    "of",
    "waits",
}


def test_the_reference_is_as_make_docs_makes_it() -> None:
    assert reference.page() == PAGE, "run `make docs`"


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_and_method_is_in_it(name: str) -> None:
    member = getattr(holdfast, name)
    twin = name.removeprefix("Async")
    if twin != name:
        assert f"`{name}`: the same for asyncio" in PAGE
        return
    assert name in HEADINGS
    if inspect.isclass(member) and not issubclass(member, BaseException):
        public = {
            word
            for word, value in inspect.getmembers_static(member)
            if not word.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
        }
        parents = [base for base in member.__mro__[1:] if base.__name__ in holdfast.__all__]
        inherited = {
            word for base in parents for word in public if vars(member).get(word) is None and hasattr(base, word)
        }
        ours = public - inherited - KNOWN_INTERNAL - set(dir(tuple)) - set(dir(dict))
        assert {word for word in ours if f"{name}.{word}" not in HEADINGS} == set()


@pytest.mark.parametrize("module", reference.GUARDS)
def test_every_guard_is_in_it(module: str) -> None:
    guards = reference.public_of_module(importlib.import_module(f"holdfast.fencing.{module}"))

    assert guards
    assert {f"fencing.{module}.{name}" for name in guards} <= HEADINGS


def test_every_error_and_every_option_is_in_it() -> None:
    errors = importlib.import_module("holdfast.errors")

    assert reference.public_of_module(errors).keys() <= HEADINGS
    for option in holdfast.LockOptions.__annotations__:
        assert f"| `{option}` |" in PAGE


def test_every_example_belongs_to_something() -> None:
    assert EXAMPLES.keys() <= HEADINGS


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setattr("holdfast.default._default", None)
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        example = doctest.DocTestParser().get_doctest(
            EXAMPLES[name], {"holdfast": holdfast, "client": client, "other": other}, name, None, None
        )
        said: list[str] = []

        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)

    assert results.attempted > 0
    assert results.failed == 0, "".join(said)
    made = vars(importlib.import_module("holdfast.default"))["_default"]
    if made is not None:
        made.close()
