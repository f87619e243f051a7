"""`holdfast init`: the tables of a store that has some, created or printed."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from holdfast.cli import statuses
from holdfast.cli.help import STORE, Commands, add_command

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.url import Scheme

_DESCRIPTION = """\
Create what locks need in a database: tables and functions. What is there
already stays; so do the locks. There is no need for it where holdfast's own
user may create tables: then the first use does. A store without tables needs
nothing, and gets nothing.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "init",
        summary="create the tables of a database, or print the SQL that does",
        description=_DESCRIPTION,
        examples={
            "holdfast init postgresql://db/shop": "create them",
            "holdfast init --print postgresql://db/shop >locks.sql": "for somebody else to run; asks no server",
        },
        results={statuses.DONE: "they are there, or were printed", **STORE},
    )
    parser.add_argument("url", metavar="URL", nargs="?", help="the store (default: $HOLDFAST_URL)")
    parser.add_argument("--print", action="store_true", dest="prints", help="print the SQL, and change nothing")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast import url as urls
    from holdfast.default_url import default_url, naming_the_variable

    with naming_the_variable(arguments.url):
        address = urls.parse(default_url() if arguments.url is None else arguments.url)
    scheme = urls.SCHEMES[address.scheme]
    if not scheme.tables:
        print(f"holdfast: {address.scheme}:// needs no tables: use it as it is", file=sys.stderr)
    elif arguments.prints:
        sys.stdout.write(_module(scheme, "sql").ddl(address))
    else:
        if scheme.driver is not None:
            urls.require_driver(address.scheme, scheme.driver, scheme.extra)
        _module(scheme, "io.blocking").create_tables(address)
        print(f"{address.redacted}: the tables are there")
    return statuses.DONE


def _module(scheme: Scheme, name: str) -> ModuleType:
    return importlib.import_module(f"{scheme.package}.{name}")
