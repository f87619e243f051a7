"""URLs of stores: which backend, where, with which options. Imports a driver only when its URL is used."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


class Scheme(NamedTuple):
    """One row of the table of backends."""

    package: str  # where its blocking.py and aio.py are
    driver: str | None = None  # the module that has to be importable
    extra: str | None = None  # the extra that installs it; None: it comes with Python
    options: tuple[str, ...] = ()  # what may stand behind the question mark


SCHEMES: dict[str, Scheme] = {
    "memory": Scheme("holdfast.backends.memory"),
    "sqlite": Scheme("holdfast.backends.sqlite", driver="sqlite3"),
}


class Address(NamedTuple):
    """A URL, taken apart and checked as far as that goes without its backend."""

    scheme: str
    host: str  # user, password, hosts and ports, as they stand
    path: str
    options: dict[str, str]
    redacted: str  # the URL without its password: for messages, logs and `client.url`


def default_url() -> str:
    """$HOLDFAST_URL, or a file in the user's state folder that is private to the user.

    Raises:
        ConfigurationError: this user has no home folder to keep it in.
    """
    url = os.environ.get("HOLDFAST_URL")
    if url:
        return url
    home = os.path.expanduser("~")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    if state.startswith("~"):  # no $HOME, and no entry in /etc/passwd: it would be a folder called ~ in the current one
        raise ConfigurationError("this user has no home folder to keep locks in: set HOLDFAST_URL, or HOME")
    return "sqlite://" + os.path.join(os.path.abspath(state), "holdfast", "locks.db")


def parse(url: object) -> Address:
    """Take a URL apart.

    Raises:
        ConfigurationError: not a URL, an unknown scheme or option; says what would do.
    """
    if not isinstance(url, str) or "://" not in url:
        raise ConfigurationError(f"url must look like scheme://…, not {url!r} (known: {_known()})")
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(f"url has the unknown scheme {parts.scheme!r}{_did_you_mean(parts.scheme, SCHEMES)}")
    scheme = SCHEMES[parts.scheme]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if option not in scheme.options:
            known = ", ".join(scheme.options) or "none"
            hint = _did_you_mean(option, scheme.options) if scheme.options else ""
            raise ConfigurationError(
                f"url has the unknown option {option!r}{hint} ({parts.scheme}:// takes: {known}); "
                "what belongs to a lock, such as ttl, goes to client.lock()"
            )
    if parts.fragment:
        raise ConfigurationError(f"url has a fragment (#{parts.fragment}); write # as %23 if it belongs to the path")
    user, at, hosts = parts.netloc.rpartition("@")
    shown = f"{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{hosts}"
    redacted = f"{parts.scheme}://{shown}{parts.path}" + (f"?{parts.query}" if parts.query else "")
    return Address(parts.scheme, parts.netloc, unquote(parts.path), options, redacted)


def opener(address: Address, runtime: str) -> Callable[..., Any]:
    """The function that opens this address's backend on "blocking" or "aio".

    Raises:
        ConfigurationError: the driver is missing; says how to install it.
    """
    scheme = SCHEMES[address.scheme]
    if scheme.driver is not None:
        require_driver(address.scheme, scheme.driver, scheme.extra)
    module = importlib.import_module(f"{scheme.package}.{runtime}")
    function: Callable[..., Any] = module.open_backend
    return function


def require_driver(scheme: str, driver: str, extra: str | None) -> None:
    """Import it, or say how to get it."""
    try:
        importlib.import_module(driver)
    except ImportError as error:
        how = (
            f"pip install 'holdfast[{extra}]'"
            if extra
            else "it is part of Python, but this one was built without it: use another Python or another backend"
        )
        problem = f"{scheme}:// needs the module {driver!r}, which cannot be imported ({error})"
        raise ConfigurationError(f"{problem}: {how}") from error


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


def _did_you_mean(word: str, known: Any) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"
