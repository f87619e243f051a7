"""Distributions with a backend, for `sys.path` or PYTHONPATH: the example, and broken ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "files_backend"


def add_metadata(folder: Path, distribution: str, backends: Mapping[str, str], version: str = "1.0") -> None:
    """Write what an installer writes for a distribution with these entry points."""
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    lines = [f"{scheme} = {package}" for scheme, package in backends.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[holdfast.backends]", *lines, ""]))


def add_example_metadata(folder: Path) -> None:
    """Write the metadata of the example, from its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    add_metadata(folder, project["name"], project["entry-points"]["holdfast.backends"], project["version"])


def add_package(folder: Path, package: str, files: Mapping[str, str]) -> None:
    """Write a package that is the backend of the example, but for these files."""
    own = {
        "__init__.py": "",
        "config.py": "from holdfast_files.config import *\n",
        "protocol/__init__.py": "",
        "protocol/guarantees.py": "from holdfast_files.protocol.guarantees import *\n",
        "io/__init__.py": "",
        "io/blocking.py": "from holdfast_files.io.blocking import open_backend\n",
        "io/aio.py": "from holdfast_files.io.aio import open_backend\n",
    }
    for name, text in (own | dict(files)).items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
