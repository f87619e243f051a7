"""The README, docs/choosing-a-store.md and docs/backends match the code: tables of guarantees and options are
generated, examples are run.

As a program (`make readme`) this writes the tables.
"""

from __future__ import annotations

import importlib
import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.guarantees import Guarantees
from holdfast.url import SCHEMES
from holdfast.url_parts import Option

README = Path(__file__).parents[2] / "README.md"
CHOOSING = README.parent / "docs" / "choosing-a-store.md"
MARKED = re.compile(r"(<!-- (guarantees|options): .*? -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
PAGES = {
    README.parent / "docs" / "backends" / f"{package.rpartition('.')[2]}.md": package
    for package in dict.fromkeys(row.package for row in SCHEMES.values())
}
EXAMPLE_URLS = {
    "memory": "memory://",
    "sqlite": "sqlite:///var/tmp/holdfast-readme.db",
    "redis": "redis://cache.example:6379/0",
    "rediss": "rediss://cache.example:6379/0",
    "redis+unix": "redis+unix:///run/redis/redis.sock",
    "redis+sentinel": "redis+sentinel://one.example,two.example,three.example/locks/0",
    "redis+cluster": "redis+cluster://one.example,two.example",
    "redlock": "redlock://one.example,two.example,three.example",
    "postgresql": "postgresql://app@db.example:5432/app",
    "postgres": "postgres://app@db.example:5432/app",
    "nats": "nats://one.example,two.example,three.example",
    "natss": "natss://one.example,two.example,three.example",
    "memcached": "memcached://one.example,two.example",
    "memcacheds": "memcacheds://cache.example",
    "etcd": "etcd://one.example,two.example,three.example",
    "etcds": "etcds://one.example,two.example,three.example",
    "zookeeper": "zookeeper://one.example,two.example,three.example/locks",
    "mysql": "mysql://app@db.example:3306/app",
    "mariadb": "mariadb://app@db.example:3306/app",
}


def table() -> str:
    """Return a row for each backend and each of its methods. The schemes of a backend have the same guarantees."""
    lines = ["| backend | " + " | ".join(Guarantees._fields) + " |", "|---" * (1 + len(Guarantees._fields)) + "|"]
    backends: dict[str, list[str]] = {}
    for scheme, row in SCHEMES.items():
        backends.setdefault(row.package, []).append(scheme)
    for package, schemes in backends.items():
        promised = importlib.import_module(f"{package}.protocol.guarantees").GUARANTEES
        methods = promised if isinstance(promised, dict) else {"": promised}
        first, *others = (f"`{scheme}://`" for scheme in schemes)
        names = [f"{first}, {', '.join(others)}" if others else first]
        names += [f"{first} with `method={method}`" for method in [*methods][1:]]
        for name, guarantees in zip(names, methods.values(), strict=True):
            lines.append(f"| {name} | " + " | ".join(guarantees.as_dict().values()) + " |")
    return "\n".join(lines) + "\n"


def options_of(package: str) -> tuple[Option, ...]:
    options: tuple[Option, ...] = importlib.import_module(f"{package}.config").OPTIONS
    return options


def options_table(package: str) -> str:
    """Return a row for each option; options with the same meaning share a row."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for (meaning, default, schemes), options in itertools.groupby(
        options_of(package), lambda option: (option.meaning, option.default, option.schemes)
    ):
        names = ", ".join(f"`{option.name}`" for option in options)
        only = f" (only {', '.join(f'`{scheme}://`' for scheme in schemes)})" if schemes else ""
        lines.append(f"| {names} | {meaning}{only} | {f'`{default}`' if default is not None else ''} |")
    return "\n".join(lines) + "\n"


def test_an_unused_client_has_the_guarantees_of_the_table() -> None:
    for scheme, row in SCHEMES.items():
        promised = importlib.import_module(f"{row.package}.protocol.guarantees").GUARANTEES
        default_method = next(iter(promised.values())) if isinstance(promised, dict) else promised

        assert holdfast.Client(EXAMPLE_URLS[scheme]).guarantees == default_method


@pytest.mark.parametrize("page", [README, CHOOSING], ids=lambda page: page.stem)
def test_the_table_of_guarantees_matches_the_backends(page: Path) -> None:
    match = MARKED.search(page.read_text())

    assert match is not None
    assert match[3] == table(), "run `make readme`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_of_a_backend_lists_its_options(page: Path) -> None:
    match = MARKED.search(page.read_text())

    if options_of(PAGES[page]):
        assert match is not None
        assert match[3] == options_table(PAGES[page]), "run `make readme`"
    else:
        assert match is None


@pytest.mark.parametrize("package", PAGES.values())
def test_options_are_declared_completely(package: str) -> None:
    options = options_of(package)
    schemes = {scheme for scheme, row in SCHEMES.items() if row.package == package}

    assert len({option.name for option in options}) == len(options)
    for option in options:
        option.value({})  # the default is valid
        assert set(option.schemes) <= schemes
        assert option.meaning.isascii()  # for any terminal
        assert "|" not in option.meaning
        assert option.meaning.count("`") % 2 == 0
        assert not option.meaning.endswith(".")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/default.db")
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 5
    names: dict[str, Any] = {"holdfast": holdfast}

    for example in examples:
        code = example.replace("sqlite:///var/lib/app/locks.db", f"sqlite://{tmp_path}/locks.db")
        if "async with" in code:
            code = f"import asyncio\nasync def main():\n{textwrap.indent(code, '    ')}\nasyncio.run(main())"
        exec(compile(code, str(README), "exec"), names)  # noqa: S102  (the examples are ours)

    names["client"].close()
    holdfast.default_client().close()


def write(path: Path, text: str) -> None:
    path.write_text(MARKED.sub(lambda match: match[1] + text + match[4], path.read_text()))


if __name__ == "__main__":
    write(README, table())
    write(CHOOSING, table())
    for page, package in PAGES.items():
        write(page, options_table(package))
