"""Finds the backends of other distributions: entry points of the group `holdfast.backends`.

The name of an entry point is the scheme, its value the package of the backend (docs/internals/writing-a-backend.md).
This reads the metadata of all installed distributions, which takes milliseconds, so it is called only for a scheme that
holdfast does not have, and by `holdfast backends`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "holdfast.backends"


class Plugin(NamedTuple):
    """A scheme of another distribution. Its package is not imported yet."""

    scheme: str
    package: str
    distribution: str  # name and version

    def problem(self) -> str | None:
        """The reason why no URL can have this scheme, if there is one."""
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*", self.scheme):
            return "a scheme has lower-case letters, digits and + . - only, and begins with a letter"
        if not re.fullmatch(r"\w+(\.\w+)*", self.package):
            return f"its entry point must name a package, not {self.package!r}"
        return None


def installed() -> list[Plugin]:
    """The plugins of all distributions on `sys.path`, in the order of their schemes."""
    from importlib.metadata import entry_points

    return sorted(map(_plugin, entry_points(group=GROUP)))


def find(scheme: str) -> Plugin | None:
    """The plugin with this scheme, if there is one.

    Raises:
        ConfigurationError: several distributions have this scheme, or the entry point is not valid.
    """
    plugins = [plugin for plugin in installed() if plugin.scheme == scheme]
    if not plugins:
        return None
    if len(plugins) > 1:
        names = " and ".join(plugin.distribution for plugin in plugins)
        raise ConfigurationError(f"{scheme}:// is a backend of several distributions, {names}: uninstall all but one")
    problem = plugins[0].problem()
    if problem is not None:
        raise ConfigurationError(f"{scheme}:// of the distribution {plugins[0].distribution} cannot be used: {problem}")
    return plugins[0]


def _plugin(entry_point: EntryPoint) -> Plugin:
    distribution = entry_point.dist
    name = "?" if distribution is None else f"{distribution.name} {distribution.version}"
    return Plugin(entry_point.name, entry_point.value, name)
