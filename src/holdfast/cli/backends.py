"""`holdfast backends`: list the stores, their guarantees, primitives, URL options and drivers.

The data comes from the table in url.py, from the entry points of other distributions (plugins.py), and from each
backend's config.py and protocol/guarantees.py. None of them needs a driver:

    GUARANTEES   one Guarantees, or one for each `method=` of its URL, the default first
    LACKS        the missing primitives and the reasons, in the same form
    OPTIONS      the options of its URLs
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast import plugins
from holdfast.cli import options as cli_options
from holdfast.cli import primitives, statuses
from holdfast.cli.help import USAGE, Commands, add_command, listed
from holdfast.cli.tables import Column, draw
from holdfast.cli.terminal import Terminal
from holdfast.errors import ConfigurationError
from holdfast.guarantees import Guarantees
from holdfast.primitives import Lacks
from holdfast.threads.client import Client
from holdfast.url import SCHEMES, Scheme, guarantees_of, lacks_of, options_of, parse, scheme_of
from holdfast.url_parts import Option

_DESCRIPTION = """\
List the stores that holdfast supports: their guarantees, their primitives (or
why one is missing), their URL options, and whether the driver is installed.
For a single store, the options are explained. No server is contacted.
"""


class Backend(NamedTuple):
    """One scheme, as far as it is known without opening a store."""

    scheme: str
    implementation: str  # the Python package of the backend; several schemes may share it
    guarantees: Mapping[str, Guarantees]  # by method; the key is "" if there is only one
    lacks: Mapping[str, Lacks]  # by method, as above
    options: tuple[Option, ...]
    driver: str | None  # module
    package: str | None  # distribution that contains the module
    version: str | None
    is_installed: bool
    install: str | None  # command to install it; None if it is part of Python
    distribution: str | None  # of another author, with its version; None: holdfast itself

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
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
            "options": [option.name for option in self.options],
            "option_details": [
                {"name": option.name, "default": option.default, "valid": option.valid, "meaning": _meaning(option)}
                for option in self.options
            ],
            "driver": self.driver,
            "package": self.package,
            "version": self.version,
            "installed": self.is_installed,
            "install": self.install,
            "distribution": self.distribution,
        }


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "backends",
        run=_run,
        summary="list the supported stores and their guarantees",
        description=_DESCRIPTION,
        examples={
            "holdfast backends": "all stores",
            "holdfast backends redis+sentinel": "one store, options explained",
            'holdfast backends --url "$HOLDFAST_URL"': "the guarantees of this store",
        },
        results={statuses.DONE: "done", **USAGE},
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("scheme", metavar="SCHEME", nargs="?", choices=_Choices(), help="only this store, such as redis")
    only.add_argument("--url", help="only the store of this URL, as configured by it")
    cli_options.add_json(parser)


class _Choices:
    """The schemes. Those of other distributions are looked up only if they are needed."""

    def __contains__(self, name: object) -> bool:
        return name in SCHEMES or any(name == plugin.scheme for plugin in plugins.installed())

    def __iter__(self) -> Iterator[str]:
        yield from SCHEMES
        yield from (plugin.scheme for plugin in plugins.installed() if plugin.scheme not in SCHEMES)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.url:
        backends = [_of_url(arguments.url)]
    elif arguments.scheme:
        backends = [describe(arguments.scheme, scheme_of(arguments.scheme))]
    else:
        backends = [*(describe(name, scheme) for name, scheme in SCHEMES.items()), *_plugins()]
    if arguments.json:
        print(json.dumps([backend.as_dict() for backend in backends], indent=2))
    else:
        print(*_lines(backends, Terminal.of(sys.stdout)), sep="\n")
    return statuses.DONE


def describe(name: str, scheme: Scheme) -> Backend:
    """Return the Backend of one row of `url.SCHEMES`."""
    guarantees, lacks = guarantees_of(scheme), lacks_of(scheme)
    is_installed, package, version = _driver(scheme.driver)
    return Backend(
        scheme=name,
        implementation=scheme.package,
        guarantees=guarantees,
        lacks={method: lacks[method if method in lacks else ""] for method in guarantees},
        options=options_of(name, scheme),
        driver=scheme.driver,
        package=package,
        version=version,
        is_installed=is_installed,
        install=f"pip install 'holdfast[{scheme.extra}]'" if scheme.extra else None,
        distribution=scheme.distribution or None,
    )


def _plugins() -> list[Backend]:
    """Return the backends of other distributions. A warning on stderr names each that cannot be used."""
    backends = []
    for name, same_scheme in itertools.groupby(plugins.installed(), key=lambda plugin: plugin.scheme):
        try:
            if name not in SCHEMES:
                backends.append(describe(name, scheme_of(name)))
                continue
            ignored = " and ".join(plugin.distribution for plugin in same_scheme)
            problem = f"{name}:// of {ignored} is ignored: holdfast itself has a backend with this scheme"
        except ConfigurationError as error:
            problem = str(error)
        print(f"holdfast: {problem}", file=sys.stderr)
    return backends


def _of_url(url: str) -> Backend:
    address = parse(url)
    backend = describe(address.scheme, scheme_of(address.scheme))
    method = address.options.get("method", next(iter(backend.lacks)))
    with Client(url) as client:
        return backend._replace(guarantees={"": client.guarantees}, lacks={"": backend.lacks[method]})


def _driver(module: str | None) -> tuple[bool, str | None, str | None]:
    """Return whether the module is installed, its distribution and version. No third-party module is imported."""
    if module is None:
        return True, None, None
    import importlib.metadata
    import importlib.util

    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        try:
            importlib.import_module(top)  # a Python build may lack it
        except ImportError:
            return False, "Python", None
        return True, "Python", ".".join(map(str, sys.version_info[:3]))
    if importlib.util.find_spec(top) is None:
        return False, None, None
    package = next(iter(_distributions(tuple(sys.path)).get(top, [])), None)
    return True, package, importlib.metadata.version(package) if package else None


@functools.cache
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions of each top-level module. They are cached, because this reads their lists of files."""
    import importlib.metadata

    return importlib.metadata.packages_distributions()


def _lines(backends: list[Backend], terminal: Terminal) -> list[str]:
    # Schemes with the same implementation have the same guarantees, which are listed once.
    by_implementation: dict[str, list[Backend]] = {}
    for backend in backends:
        by_implementation.setdefault(backend.implementation, []).append(backend)
    guarantees = draw(
        [Column("backend", flexible=True), *map(Column, Guarantees._fields)],
        [row for first, *_ in by_implementation.values() for row in _guarantee_rows(first)],
        terminal,
    )
    aliases = [
        f"{', '.join(f'{other.scheme}://' for other in others)}: as {first.scheme}://"
        for first, *others in by_implementation.values()
        if others
    ]
    grid = primitives.grid(
        [row for first, *_ in by_implementation.values() for row in _primitive_rows(first)], terminal
    )
    drivers = draw(
        [Column("backend"), Column("driver", flexible=True)],
        [(f"{backend.scheme}://", _driver_text(backend)) for backend in backends],
        terminal,
    )
    options = _options(backends)
    missing = [
        f"  {backend.scheme}://  {backend.install}"
        for backend in backends
        if backend.install and not backend.is_installed
    ]
    return [
        *guarantees,
        *aliases,
        "",
        *grid,
        "",
        *drivers,
        *(["", *options] if options else []),
        *(["", "to install missing drivers:", *missing] if missing else []),
    ]


def _options(backends: list[Backend]) -> list[str]:
    """Return the options of one backend with their meanings, or the names of the options of several."""
    if len(backends) == 1:
        entries = {
            option.name: _meaning(option) + (f" (default: {option.default})" if option.default is not None else "")
            for option in backends[0].options
        }
    else:
        entries = {
            f"{backend.scheme}://": ", ".join(option.name for option in backend.options)
            for backend in backends
            if backend.options
        }
    return listed("options:", entries).splitlines() if entries else []


def _meaning(option: Option) -> str:
    return option.meaning.replace("`", "")


def _guarantee_rows(backend: Backend) -> list[list[str]]:
    name = f"{backend.scheme}://"
    rows: list[list[str]] = []
    for method, guarantees in backend.guarantees.items():
        if method and not rows:
            rows.append([name, *[""] * len(guarantees)])
        rows.append([f"  {method}" if method else name, *guarantees.as_dict().values()])
    return rows


def _primitive_rows(backend: Backend) -> list[tuple[str, Lacks | None]]:
    name = f"{backend.scheme}://"
    if "" in backend.lacks:
        return [(name, backend.lacks[""])]
    return [(name, None), *((f"  {method}", lacks) for method, lacks in backend.lacks.items())]


def _driver_text(backend: Backend) -> str:
    if backend.distribution is not None:
        return f"plugin: {backend.distribution}"
    if backend.driver is None:
        return "none needed"
    if not backend.is_installed:
        return f"{backend.driver}: not installed"
    if backend.package == "Python":
        return f"{backend.driver}, part of Python {backend.version}"
    return f"{backend.package or backend.driver} {backend.version or '(version unknown)'}"
