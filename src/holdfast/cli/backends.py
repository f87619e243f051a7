"""`holdfast backends`: which stores there are, what each promises, and what it takes to use it.

Read from the table in url.py and from the backend's protocol.py, neither of which needs a driver or a server:

    GUARANTEES   one Guarantees, or one for each `method=` of its URL, the default first
    LACKS        what it cannot do, and why, in the same form
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli import options, statuses
from holdfast.cli.help import USAGE, Commands, add_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.cli.terminal import Terminal
    from holdfast.guarantees import Guarantees
    from holdfast.primitives import Lacks
    from holdfast.url import Scheme

_DESCRIPTION = """\
List the stores that holdfast can keep locks in: what each promises, what it
can do (or why not), which options its URL takes, and whether its driver is
installed. No server is asked.
"""


_WIDTH = 80  # columns


class Backend(NamedTuple):
    """One scheme, as far as it can be known without opening a store."""

    scheme: str
    folder: str  # of the code behind it, which other schemes may share
    guarantees: Mapping[str, Guarantees]  # for each method; the key is "" if there is only one
    lacks: Mapping[str, Lacks]  # in the same form
    options: tuple[str, ...]
    driver: str | None  # the module
    package: str | None  # what holds the module
    version: str | None
    is_installed: bool
    install: str | None  # how to, unless it is part of Python

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from holdfast.cli import primitives

        return {
            "scheme": self.scheme,
            "methods": [
                {
                    "method": method or None,
                    **guarantees.as_dict(),
                    "primitives": primitives.as_dict(self.lacks[method]),
                }
                for method, guarantees in self.guarantees.items()
            ],
            "options": list(self.options),
            "driver": self.driver,
            "package": self.package,
            "version": self.version,
            "installed": self.is_installed,
            "install": self.install,
        }


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "backends",
        summary="list the stores there are, and what each promises",
        description=_DESCRIPTION,
        examples={
            "holdfast backends": "all of them",
            'holdfast backends --url "$HOLDFAST_URL"': "what this very store promises",
        },
        results={statuses.DONE: "done", **USAGE},
    )
    parser.add_argument("--url", help="only the backend of this store, as configured by this URL")
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.url import SCHEMES

    found = [_of_url(arguments.url)] if arguments.url else [describe(name, row) for name, row in SCHEMES.items()]
    if arguments.json:
        import json

        print(json.dumps([each.as_dict() for each in found], indent=2))
    else:
        from holdfast.cli.terminal import Terminal

        print(*_lines(found, Terminal.of(sys.stdout)), sep="\n")
    return statuses.DONE


def describe(name: str, scheme: Scheme) -> Backend:
    """What is known of one row of `url.SCHEMES`."""
    from holdfast.url import declared, lacking

    guarantees, lacks = declared(scheme), lacking(scheme)
    is_installed, package, version = _driver(scheme.driver)
    return Backend(
        scheme=name,
        folder=scheme.package,
        guarantees=guarantees,
        lacks={method: lacks[method if method in lacks else ""] for method in guarantees},
        options=scheme.options,
        driver=scheme.driver,
        package=package,
        version=version,
        is_installed=is_installed,
        install=f"pip install 'holdfast[{scheme.extra}]'" if scheme.extra else None,
    )


def _of_url(url: str) -> Backend:
    from holdfast.client import Client
    from holdfast.url import SCHEMES, parse

    address = parse(url)
    found = describe(address.scheme, SCHEMES[address.scheme])
    method = address.options.get("method", next(iter(found.lacks)))
    with Client(url) as client:
        return found._replace(guarantees={"": client.guarantees}, lacks={"": found.lacks[method]})


def _driver(module: str | None) -> tuple[bool, str | None, str | None]:
    """Whether it is installed, by which package, in which version. Nothing that was installed is imported for this."""
    if module is None:
        return True, None, None
    import importlib.metadata
    import importlib.util

    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        try:
            importlib.import_module(top)  # it may have been left out when this Python was built
        except ImportError:
            return False, "Python", None
        return True, "Python", ".".join(map(str, sys.version_info[:3]))
    if importlib.util.find_spec(top) is None:
        return False, None, None
    package = next(iter(importlib.metadata.packages_distributions().get(top, [])), None)
    return True, package, importlib.metadata.version(package) if package else None


def _lines(backends: list[Backend], terminal: Terminal) -> list[str]:
    from holdfast.cli import primitives
    from holdfast.cli.tables import Column, draw
    from holdfast.guarantees import Guarantees

    # Several schemes may lead to one backend; what it promises is said once.
    alike: dict[str, list[Backend]] = {}
    for each in backends:
        alike.setdefault(each.folder, []).append(each)
    promises = draw(
        [Column("backend", flexible=True), *map(Column, Guarantees._fields)],
        [row for first, *_ in alike.values() for row in _promises(first)],
        terminal,
    )
    same = [
        f"{', '.join(f'{other.scheme}://' for other in others)}: as {first.scheme}://"
        for first, *others in alike.values()
        if others
    ]
    can = primitives.grid([row for first, *_ in alike.values() for row in _lacks(first)], terminal)
    needs = draw(
        [Column("backend"), Column("driver", flexible=True)],
        [(f"{each.scheme}://", _driver_words(each)) for each in backends],
        terminal,
    )
    taken = [line for each in backends if each.options for line in _options(each)]
    missing = [f"  {each.scheme}://  {each.install}" for each in backends if each.install and not each.is_installed]
    return [
        *promises,
        *same,
        "",
        *can,
        "",
        *needs,
        *(["", "options:", *taken] if taken else []),
        *(["", "to install what is missing:", *missing] if missing else []),
    ]


def _options(backend: Backend) -> list[str]:
    import textwrap

    name = f"  {backend.scheme}://  "
    return textwrap.wrap(name + ", ".join(backend.options), _WIDTH, subsequent_indent=" " * len(name))


def _promises(backend: Backend) -> list[list[str]]:
    name = f"{backend.scheme}://"
    rows: list[list[str]] = []
    for method, guarantees in backend.guarantees.items():
        if method and not rows:
            rows.append([name, *[""] * len(guarantees)])
        rows.append([f"  {method}" if method else name, *guarantees.as_dict().values()])
    return rows


def _lacks(backend: Backend) -> list[tuple[str, Lacks | None]]:
    name = f"{backend.scheme}://"
    if "" in backend.lacks:
        return [(name, backend.lacks[""])]
    return [(name, None), *((f"  {method}", lacks) for method, lacks in backend.lacks.items())]


def _driver_words(backend: Backend) -> str:
    if backend.driver is None:
        return "none needed"
    if not backend.is_installed:
        return f"{backend.driver}: not installed"
    if backend.package == "Python":
        return f"{backend.driver}, part of Python {backend.version}"
    return f"{backend.package or backend.driver} {backend.version or '(version unknown)'}"
