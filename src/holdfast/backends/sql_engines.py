"""An engine of SQLAlchemy in place of a URL: the arguments with which it connects. They are read without connecting.

SQLAlchemy has no public access to `connect_args`, which may have the options of TLS. From SQLAlchemy 1.4 on, they are
in the function that the engine's pool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.url import unknown_client

_FIX = "give a url; for a password that changes, a url and password=function"


def is_engine(client: object) -> bool:
    """Whether it is an Engine or AsyncEngine of SQLAlchemy."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(client).__mro__}
    return not kinds.isdisjoint({("sqlalchemy", "Engine"), ("sqlalchemy", "AsyncEngine")})


def connect_arguments(client: Any) -> tuple[str, Mapping[str, Any]]:
    """The name of the engine's driver, and the arguments of the driver's connect().

    Raises:
        ConfigurationError: the engine's arguments alone do not decide where it connects.
    """
    engine = getattr(client, "sync_engine", client)
    creator = engine.pool._creator  # noqa: SLF001 (see above)
    if not getattr(creator, "__module__", "").startswith("sqlalchemy."):
        raise ConfigurationError(f"url is an engine with a creator of its own, which makes its connections: {_FIX}")
    if list(engine.dialect.dispatch.do_connect):
        raise ConfigurationError(f"url is an engine with listeners for do_connect, which make its connections: {_FIX}")
    names = getattr(creator, "__code__", None) and creator.__code__.co_freevars
    known = dict(zip(names or (), (cell.cell_contents for cell in creator.__closure__ or ()), strict=True))
    if "cparams" not in known:
        raise unknown_client("an engine of", type(engine))
    return engine.dialect.driver, known["cparams"]


def unknown_driver(client: Any, drivers: str) -> ConfigurationError:
    """The error for an engine whose driver has other arguments."""
    dialect = getattr(client, "sync_engine", client).dialect
    return ConfigurationError(
        f"url is an engine of {dialect.name}+{dialect.driver}, whose options holdfast does not know: give a url, or an "
        f"engine of {drivers}"
    )
