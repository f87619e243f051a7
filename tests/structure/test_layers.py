"""The structure of the package: the direction of imports, pure protocols, a light `import holdfast`."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools import import_graph

ROOT = Path(__file__).parents[2]
SOURCE, LAB = import_graph.SOURCES.values()

# From bottom to top. A module imports from its own layer and from those below it.
LAYERS = [
    {"errors", "guarantees", "primitives"},
    {"core"},
    {"runtimes"},
    {"url_parts"},
    {"url", "default_url", "plugins", "requirements"},
    {"backends"},
    {"base_client"},
    {"threads", "aio", "default", "__init__"},
    {"asgi", "celery", "fastapi", "fencing", "metrics", "monitor", "otel", "prometheus", "sql", "starlette", "testing"},
    {"dashboard"},
    {"cli", "__main__"},
    {"django"},  # its management commands are a command line too
]
LAB_LAYERS = [{"__init__"}, {"checking"}, {"sim", "verify"}, {"cli"}, {"long_search"}, {"conformance"}]

# Modules that would tie a protocol to one runtime.
IO_MODULES = {
    "asyncio",
    "threading",
    "time",
    "random",
    "secrets",
    "uuid",
    "socket",
    "selectors",
    "sqlite3",
    "os",
    "signal",
}


def modules(source: Path = SOURCE) -> list[Path]:
    return sorted(source.rglob("*.py"))


def top_package(path: Path, source: Path = SOURCE) -> str:
    return path.relative_to(source).parts[0].removesuffix(".py")


def imports(path: Path, source: Path = SOURCE) -> Iterator[str]:
    """Yield every module that is imported at run time, as a dotted name."""
    package = path.relative_to(source.parent).parts[:-1]
    for node in import_graph.import_statements(path, typing=False):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            yield ".".join(part for part in (base, node.module) if part)


def level(name: str, layers: Sequence[set[str]] = LAYERS) -> int:
    return next(number for number, layer in enumerate(layers) if name in layer)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_import_only_from_their_layer_and_below(path: Path) -> None:
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] != "holdfast_lab"
        if parts[0] == "holdfast":
            target = parts[1] if len(parts) > 1 else "__init__"
            assert level(target) <= level(top_package(path)), f"{path.name} imports {name}, which is above it"


@pytest.mark.parametrize("path", modules(LAB), ids=lambda path: str(path.relative_to(LAB)))
def test_modules_of_the_laboratory_import_only_from_their_layer_and_below(path: Path) -> None:
    for name in imports(path, LAB):
        parts = name.split(".")
        if parts[0] == "holdfast_lab":
            target = parts[1] if len(parts) > 1 else "__init__"
            assert level(target, LAB_LAYERS) <= level(top_package(path, LAB), LAB_LAYERS)
        if parts[:2] == ["holdfast", "cli"]:
            assert top_package(path, LAB) in ("cli", "long_search")


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if top_package(path) == "core" or "protocol" in path.parts],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_protocols_import_no_io(path: Path) -> None:
    assert IO_MODULES.isdisjoint(name.split(".")[0] for name in imports(path))


def test_every_backend_has_the_same_shape() -> None:
    folders = [
        path for path in (SOURCE / "backends").iterdir() if path.is_dir() and path.name not in {"__pycache__", "net"}
    ]

    assert folders
    for folder in folders:
        entries = {path.name for path in folder.iterdir()} - {"__pycache__"}
        assert {"__init__.py", "config.py", "port.py", "protocol", "io"} <= entries
        assert entries <= {"__init__.py", "config.py", "port.py", "protocol", "io", "lua", "sql"}
        assert {"blocking.py", "aio.py"} <= {path.name for path in (folder / "io").iterdir()}
        assert (folder / "protocol" / "guarantees.py").exists()


def test_packages_do_not_import_each_other_in_a_cycle_and_the_picture_is_current() -> None:
    edges = import_graph.graph()

    import_graph.levels(edges)  # raises CycleError
    assert import_graph.draw(edges) == import_graph.PICTURE.read_text(), "run `make docs`"


def test_a_cycle_between_packages_is_found() -> None:
    with pytest.raises(graphlib.CycleError):
        import_graph.levels({"a": {"b"}, "b": {"a"}})


def test_nothing_imports_the_command_line() -> None:
    commands = SOURCE / "django" / "management"  # commands of manage.py
    not_commands = [
        path for path in modules() if top_package(path) not in ("cli", "__main__") and not path.is_relative_to(commands)
    ]

    assert not [path for path in not_commands for name in imports(path) if name.split(".")[:2] == ["holdfast", "cli"]]


def test_importing_holdfast_imports_no_driver_and_no_asyncio() -> None:
    code = "import json; before = set(sys.modules); import holdfast; print(json.dumps([*set(sys.modules) - before]))"
    loaded = json.loads(
        subprocess.run([sys.executable, "-IS", "-c", _with_path(code)], check=True, capture_output=True).stdout
    )

    for name in ("asyncio", "sqlite3", "redis", "logging", "holdfast.aio", "holdfast.backends", "holdfast.cli"):
        assert name not in loaded
    assert "holdfast.threads.client" in loaded


def test_importing_the_guards_imports_no_driver() -> None:
    guards = sorted(path.stem for path in (SOURCE / "fencing").glob("[a-z]*.py"))
    code = f"import {', '.join(f'holdfast.fencing.{guard}' for guard in guards)}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-IS", "-c", _with_path(code)], check=True, capture_output=True, text=True)

    assert {"sql", "redis", "files", "http"} <= set(guards)
    drivers = {"redis", "psycopg", "psycopg2", "pymysql", "sqlite3", "asyncio"}
    assert drivers.isdisjoint(loaded.stdout.split())


def test_a_client_for_threads_needs_no_asyncio() -> None:
    code = (
        "import sys, holdfast\n"
        "client = holdfast.Client('memory://')\n"
        "with client.lock('a'): pass\n"
        "client.close()\n"
        "assert 'asyncio' not in sys.modules"
    )

    subprocess.run([sys.executable, "-IS", "-c", _with_path(code)], check=True)


def _with_path(code: str) -> str:
    """Isolated from this machine's site-packages, whose start-up files may import anything."""
    return f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})\n{code}"
