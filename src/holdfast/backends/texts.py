"""Files of SQL and Lua in a package."""

from __future__ import annotations

import pkgutil


def text_of(package: str, path: str) -> str:
    """The text of a file of that package; `path` has slashes."""
    data = pkgutil.get_data(package, path)  # importlib.resources does the same, and takes 20 ms to import
    if data is None:
        raise FileNotFoundError(f"{path} of {package}")
    return data.decode()
