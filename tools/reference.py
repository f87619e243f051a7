"""Write docs/reference.md from the docstrings, with the examples of tools/reference_examples.txt: `make docs`.

A test checks that the page is current, that no public name is missing, and that every example is correct.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import holdfast
from holdfast import django, testing
from holdfast.url import SCHEMES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
EXAMPLES = ROOT / "tools" / "reference_examples.txt"
GUARDS = ("sql", "redis", "files", "http")  # of holdfast.fencing
SQL = ("keys", "locks")  # of holdfast.sql
WEB = ("starlette", "fastapi", "asgi")

# The sections of names that are neither functions nor errors. All other names come last.
SECTIONS = {
    "Clients": ("Client",),
    "Locks": ("Lock", "RWLock", "Semaphore", "LockAll", "Election", "Once"),
    "Leases": ("Lease", "LeaseAll"),
}
INTRODUCTION = """\
# Reference

<!-- made by `make docs` from the docstrings, checked by a test; do not edit -->

Everything in `holdfast` that is public. There are guides to [functions](locked.md), to [several locks](lock-all.md),
to [leases](leases.md), to [jobs](once-per.md), to [keys](once.md), to [elections](election.md), to [web
applications](fastapi.md), to [Celery](celery.md), to [Django](django.md), to [delays, owners and requests](options.md),
to [fences](fencing.md), to the [end of a process](shutdown.md), to [tests](testing.md), to [platforms](platforms.md)
and to the [command line](cli.md). The options of each store's URL are in [backends](backends):
{backends}.

`AsyncClient` and the objects that it makes are the same for asyncio, with the same names, arguments and words; calls
that use the store are awaited. Times are in seconds.

A test runs all examples. Each has `client = holdfast.Client("memory://")`, and `other`, a second client of the same
store, which represents another process.
"""


def page() -> str:
    """Return the content of docs/reference.md."""
    examples = read_examples()
    parts = [INTRODUCTION.format(backends=", ".join(_backends()))]
    for title, names in groups().items():
        parts.append(f"## {title}\n")
        if title == "Errors":
            parts.append(_tree())
        for name in names:
            parts += _entry(name, name, getattr(holdfast, name), examples)
    parts.append("## holdfast.fencing\n")
    parts.append("Guards for the resource that a lock protects, explained in [Guards](fencing-guards.md).\n")
    for module in GUARDS:
        guards = importlib.import_module(f"holdfast.fencing.{module}")
        for name, member in public_of_module(guards).items():
            parts += _entry(f"fencing.{module}.{name}", name, member, examples)
    parts.append("## holdfast.sql\n")
    parts.append(
        "In the caller's own transaction: once for a key, explained in [Once, in your own transaction](once-sql.md), "
        "and locks, explained in [A lock for one transaction](xact-lock.md).\n"
    )
    for module in SQL:
        for name, member in public_of_module(importlib.import_module(f"holdfast.sql.{module}")).items():
            parts += _entry(f"sql.{name}", name, member, examples)
    parts.append("## Web frameworks\n")
    parts.append("Modules for Starlette, FastAPI and ASGI; [FastAPI](fastapi.md) explains them.\n")
    for module in WEB:
        for name, member in public_of_module(importlib.import_module(f"holdfast.{module}")).items():
            parts += _entry(f"{module}.{name}", name, member, examples)
    parts.append("## holdfast.celery\n")
    parts.append("Locks around tasks, and messages that run once; [Celery](celery.md) explains them.\n")
    for name, member in public_of_module(importlib.import_module("holdfast.celery")).items():
        parts += _entry(f"celery.{name}", name, member, examples)
    parts.append("## holdfast.django\n")
    parts.append("For projects of Django; [Django](django.md) explains it.\n")
    for name in django.__all__:
        parts += _entry(f"django.{name}", name, getattr(django, name), examples)
    parts.append("## holdfast.testing\n")
    parts.append("For tests of programs that use locks; [Testing your code](testing.md) explains it.\n")
    for name in testing.__all__:
        parts += _entry(f"testing.{name}", name, getattr(testing, name), examples)
    return "\n".join(parts).rstrip() + "\n"


def groups() -> dict[str, list[str]]:
    """Return all public names in the order of the page, without their asyncio counterparts."""
    placed = {name: title for title, names in SECTIONS.items() for name in names}
    sections: dict[str, list[str]] = {title: [] for title in (*SECTIONS, "Functions", "Values", "Errors")}
    for name in holdfast.__all__:
        member = getattr(holdfast, name)
        if name.startswith("Async") and name.removeprefix("Async") in holdfast.__all__:
            continue
        if name in placed:
            title = placed[name]
        elif inspect.isfunction(member):
            title = "Functions"
        else:
            title = "Errors" if issubclass(member, BaseException) else "Values"
        sections[title].append(name)
    for title, names in sections.items():
        order = SECTIONS.get(title)
        names.sort(key=order.index if order else str.lower)
    sections["Errors"].sort(key=lambda name: [base.__name__ for base in reversed(getattr(holdfast, name).__mro__)])
    return sections


def public_of_module(module: Any) -> dict[str, Any]:
    """Return the names that a module defines itself, in its own order."""
    return {
        name: member
        for name, member in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(member) or inspect.isfunction(member))
        and member.__module__ == module.__name__
    }


def members(owner: type) -> dict[str, Any]:
    """Return the public methods and properties of a class, including those inherited from our classes."""
    public: dict[str, Any] = {}
    for name in sorted(dir(owner)):
        if name.startswith("_") or name in getattr(owner, "_fields", ()):
            continue
        member = inspect.getattr_static(owner, name)
        home = next(base for base in owner.__mro__ if name in vars(base))
        if home.__module__.startswith("holdfast") and (callable(member) or isinstance(member, property | classmethod)):
            public[name] = member
    return public


def read_examples() -> dict[str, str]:
    """Return the examples by name. A line `== name` begins one."""
    pieces = re.split(r"^== (\S+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)
    return {name: text.strip("\n") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _entry(path: str, name: str, member: Any, examples: dict[str, str]) -> Iterator[str]:
    yield f"### {path}\n"
    if inspect.isclass(member):
        yield from _class(path, name, member, examples)
    else:
        yield f"`{_signature(name, member)}`\n"
        yield _prose(member)
        yield from _example(path, examples)


def _class(path: str, name: str, owner: type, examples: dict[str, str]) -> Iterator[str]:
    if issubclass(owner, BaseException):
        yield f"Base: {', '.join(f'`{base.__name__}`' for base in owner.__bases__)}.{_data_of(owner)}\n"
    elif _is_made_by_callers(owner):
        yield f"`{_signature(name, owner)}`\n"
    yield _prose(owner)
    fields = _fields(owner)
    if fields:
        yield fields
    yield from _example(path, examples)
    twin = getattr(holdfast, f"Async{name}", None)
    if twin is not None and f"Async{name}" in holdfast.__all__:
        awaited = [attribute for attribute, member in members(twin).items() if _is_awaited(member)]
        yield f"`Async{name}`: the same for asyncio{_awaited(awaited)}.\n"
    neighbours = vars(holdfast) if path == name else vars(importlib.import_module(owner.__module__))
    parent = next((base for base in owner.__mro__[1:] if neighbours.get(base.__name__) is base), object)
    known = members(parent)
    for attribute, member in members(owner).items():
        if known.get(attribute) is member:
            continue
        yield f"#### {path}.{attribute}\n"
        if callable(member) or isinstance(member, (staticmethod, classmethod)):
            yield f"`{_signature(attribute, getattr(owner, attribute), is_method=True)}`\n"
        yield _prose(member) or _as_elsewhere(owner, attribute)
        yield from _example(f"{path}.{attribute}", examples)
    if known:
        yield f"Everything else is as in `{parent.__name__}`.\n"


def _as_elsewhere(owner: type, attribute: str) -> str:
    """Return the docstring of a method, which may be on its protocol."""
    prefix = "Async" if owner.__name__.startswith("Async") else ""
    for name, other in public_of_module(importlib.import_module(owner.__module__)).items():
        if name.startswith(prefix) and inspect.isclass(other) and inspect.getdoc(getattr(other, attribute, None)):
            return f"As in `{name}`.\n"
    raise LookupError(f"{owner.__name__}.{attribute} has no docstring")


def _is_made_by_callers(owner: type) -> bool:
    return owner.__name__.endswith(("Client", "Guard", "Fences", "Middleware"))


def _is_awaited(member: Any) -> bool:
    """Whether it is a coroutine function, or a function that returns a coroutine."""
    returned = getattr(member, "__annotations__", {}).get("return", "")
    return inspect.iscoroutinefunction(member) or str(returned).startswith("Coroutine[")


def _awaited(words: list[str]) -> str:
    return (
        f"; awaited: {', '.join(f'`{attribute}`' for attribute in words)}" if words else ", which awaits nothing itself"
    )


def _data_of(error: type) -> str:
    makers = [vars(base)["__init__"] for base in reversed(error.__mro__) if "__init__" in vars(base)]
    parameters = [name for make in makers if inspect.isfunction(make) for name in inspect.signature(make).parameters]
    names = [name for name in dict.fromkeys(parameters) if name != "self"]
    return f" Attributes: {', '.join(f'`{name}`' for name in names)}." if names else ""


def _fields(owner: type) -> str:
    """Return the fields of a named tuple or a typed dictionary, with their comments."""
    annotations = vars(owner).get("__annotations__", {})
    if not (hasattr(owner, "_fields") or hasattr(owner, "__total__")) or not annotations:
        return ""
    source = _source(owner)
    rows = []
    for name, kind in annotations.items():
        comment = re.search(rf"^    {name}: [^#\n]*#\s*(.*)$", source, flags=re.MULTILINE)
        written: str = getattr(kind, "__forward_arg__", kind)
        rows.append(f"| `{name}` | {_cell(_words(written))} | {comment[1] if comment else _values(owner, written)} |")
    return "| field | type | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _source(owner: type) -> str:
    """Return the source of a class, and of the one that it extends, which a typed dictionary does not know."""
    source = inspect.getsource(owner)
    base = re.match(r"class \w+\((\w+)", source)
    extended = vars(importlib.import_module(owner.__module__)).get(base[1]) if base else None
    if inspect.isclass(extended) and extended.__module__ == owner.__module__:
        source += _source(extended)
    return source


def _cell(kind: str) -> str:
    return "`" + re.sub(r"\bOnLost\b", "Callable | str | None", kind).replace("|", "\\|") + "`"


def _values(owner: type, kind: str) -> str:
    """Return the possible values of a field with a Literal or Enum type."""
    target = getattr(importlib.import_module(owner.__module__), kind, None)
    if inspect.isclass(target) and issubclass(target, Enum):
        return f"{inspect.getdoc(target)} One of: {', '.join(f'`{member.value}`' for member in target)}."
    return ", ".join(f"`{attribute}`" for attribute in get_args(target) if isinstance(attribute, str))


def _signature(name: str, function: Callable[..., Any], *, is_method: bool = False) -> str:
    """Return the signature as a caller uses it: without self and without parameters that exist only to be refused."""
    signature = inspect.signature(function)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "unknown")]
    if is_method and isinstance(inspect.getattr_static(function, "__self__", None), type):
        parameters = [parameter for parameter in parameters if parameter.name != "cls"]
    text = str(signature.replace(parameters=parameters))
    waits = "await " if inspect.iscoroutinefunction(function) else ""
    return waits + name + _words(text)


def _words(text: str) -> str:
    """Simplify annotations."""
    text = re.sub(r"\*\*options: '?Unpack\[(\w+)\]'?", r"**options: \1", text)
    text = text.replace("AllOptions", "LockOptions")
    text = re.sub(r": '([^']*)'", r": \1", text)
    text = re.sub(r"-> '([^']*)'", r"-> \1", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)  # modules before a type
    text = text.replace(" | Unset", "").replace("= UNSET", "= …").replace(" -> Any", "").replace(" -> None", "")
    return re.sub(r"\b(\w+)T\b", lambda match: match[1] if match[1] in holdfast.__all__ else match[0], text)


def _prose(member: Any) -> str:
    """Convert a docstring to Markdown: its sections as lists, its examples as code."""
    comment = inspect.getdoc(member.fget if isinstance(member, property) else member) or ""
    lines: list[str] = []
    for block in re.split(r"\n\n", comment):
        if block.startswith(("Args:\n", "Raises:\n")):
            head, _, rest = block.partition("\n")
            lines += [f"{'Arguments' if head == 'Args:' else 'Raises'}:\n", _list(rest) + "\n"]
        elif block.startswith(">>> "):
            lines.append(f"```pycon\n{block}\n```\n")
        elif block.startswith("    ") or "\n    " in block:
            lines.append(f"```\n{textwrap.dedent(block)}\n```\n")
        else:
            lines.append(_escaped(block) + "\n")
    return "\n".join(lines)


def _list(text: str) -> str:
    items = re.split(r"\n(?! )", textwrap.dedent(text))
    shown = []
    for item in items:
        name, _, meaning = " ".join(line.strip() for line in item.splitlines()).partition(": ")
        names = ", ".join(f"`{part}`" for part in name.split(", "))
        shown.append(
            textwrap.fill(f"- {names}: {_escaped(meaning)}", 130, subsequent_indent="  ", break_on_hyphens=False)
        )
    return "\n".join(shown)


def _escaped(text: str) -> str:
    """Escape Markdown characters outside of `…`."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _example(path: str, examples: dict[str, str]) -> Iterator[str]:
    if path in examples:
        yield f"```pycon\n{examples[path]}\n```\n"


def _tree() -> str:
    comment = inspect.getdoc(importlib.import_module("holdfast.errors")) or ""
    tree = next(block for block in comment.split("\n\n") if "├──" in block)
    return f"```\n{textwrap.dedent(tree)}\n```\n"


def _backends() -> list[str]:
    pages = sorted({scheme.package.rpartition(".")[2] for scheme in SCHEMES.values()})
    return [f"[{name}](backends/{name}.md)" for name in pages if (ROOT / "docs" / "backends" / f"{name}.md").exists()]


if __name__ == "__main__":
    PAGE.write_text(page())
