"""The setting HOLDFAST: for each alias, the arguments of its clients. `DATABASE` takes them from an entry of DATABASES.

For example:

    HOLDFAST = {
        "default": {"DATABASE": "default"},
        "jobs": {"URL": "redis://cache", "TTL": "1m", "OPTIONS": {"prefix": "shop:"}},
    }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.core.names import did_you_mean
from holdfast.errors import ConfigurationError

KEYS = ("URL", "DATABASE", "OPTIONS", "PASSWORD", "REQUIRE", "TTL")
_EXAMPLE = 'HOLDFAST = {"default": {"DATABASE": "default"}}'

# Entries of OPTIONS that the connections of holdfast take too, with the option of the URL.
_POSTGRESQL_TAKEN = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"),
    *("passfile", "target_session_attrs", "channel_binding"),
)
# Entries that concern only the connections of Django. All others are refused: they may name another server or user.
_POSTGRESQL_IGNORED = (
    *("isolation_level", "server_side_binding", "client_encoding", "pool", "application_name", "options"),
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("tcp_user_timeout", "prepare_threshold", "cursor_factory", "connection_factory", "row_factory", "context"),
)
_MYSQL_IGNORED = (
    *("charset", "collation", "init_command", "sql_mode", "isolation_level", "use_unicode", "conv", "cursorclass"),
    *("connect_timeout", "read_timeout", "write_timeout", "autocommit", "client_flag", "local_infile", "compress"),
)
_MYSQL_FILES = {"ca": "ca_certs", "cert": "certfile", "key": "keyfile"}  # of OPTIONS["ssl"]
_MYSQL_MODES = {
    "DISABLED": {"tls": "no"},
    "PREFERRED": {"tls": "preferred"},
    "REQUIRED": {"tls": "yes", "verify": "none"},
    "VERIFY_CA": {"tls": "yes"},
    "VERIFY_IDENTITY": {"tls": "yes"},
}


class Store(NamedTuple):
    """The arguments of a client."""

    url: Any
    keywords: dict[str, Any]


class Database(NamedTuple):
    """An entry of DATABASES."""

    vendor: str  # postgresql, mysql, sqlite
    settings: Mapping[str, Any]


def entry_of(setting: object, alias: str) -> Mapping[str, Any]:
    """The entry of this alias, with known keys.

    Raises:
        ConfigurationError: names the setting and the fix.
    """
    if setting is None:
        raise ConfigurationError(f"the setting HOLDFAST is missing: add {_EXAMPLE}, or a URL in place of DATABASE")
    if not isinstance(setting, Mapping):
        raise ConfigurationError(f"HOLDFAST must be a dict, not {type(setting).__name__}: {_EXAMPLE}")
    if alias not in setting:
        known = did_you_mean(alias, map(str, setting)) if setting else " (it is empty)"
        raise ConfigurationError(f"HOLDFAST has no entry {alias!r}{known}")
    entry, where = setting[alias], f"HOLDFAST[{alias!r}]"
    if not isinstance(entry, Mapping):  # not shown, because a URL may have a password
        raise ConfigurationError(f'{where} must be a dict such as {{"URL": "redis://…"}}, not {type(entry).__name__}')
    for key in entry:
        if key not in KEYS:
            hint = f" (did you mean {key.upper()!r}?)" if str(key).upper() in KEYS else did_you_mean(str(key), KEYS)
            raise ConfigurationError(f"{where} has no key {key!r}{hint}; options of a URL go into OPTIONS")
    if ("URL" in entry) == ("DATABASE" in entry):
        how = "both" if "URL" in entry else "neither of"
        raise ConfigurationError(f"{where} has {how} URL and DATABASE: give one of them")
    if not isinstance(entry.get("OPTIONS", {}), Mapping):
        raise ConfigurationError(f"{where}['OPTIONS'] must be a dict, not {type(entry['OPTIONS']).__name__}")
    for option in entry.get("OPTIONS", {}):
        if not isinstance(option, str) or option.upper() in KEYS:
            raise ConfigurationError(
                f"{where}['OPTIONS'] has {option!r}: it is for options of a URL; {', '.join(KEYS)} are keys beside it"
            )
    return entry


def store_of(entry: Mapping[str, Any], database: Database | None) -> Store:
    """The store of an entry of HOLDFAST. `database` is the one that its key DATABASE names.

    Raises:
        ConfigurationError: the database cannot be used: names the setting and the fix.
    """
    url, keywords = (entry["URL"], {}) if database is None else _of_database(entry["DATABASE"], database)
    keywords |= entry.get("OPTIONS", {})
    for key in ("PASSWORD", "REQUIRE", "TTL"):
        if entry.get(key) is not None:
            keywords[key.lower()] = entry[key]
    return Store(url, keywords)


def _of_database(alias: str, database: Database) -> tuple[str, dict[str, Any]]:
    where = f"DATABASES[{alias!r}]"
    if database.vendor == "sqlite":
        return _sqlite_url(where, database.settings), {}
    if database.vendor not in {"postgresql", "mysql"}:
        raise ConfigurationError(
            f"{where} is a database of the kind {database.vendor!r}, in which holdfast keeps no locks: give a URL"
        )
    make_url = _postgresql_url if database.vendor == "postgresql" else _mysql_url
    url, keywords = make_url(where, database.settings, dict(database.settings.get("OPTIONS") or {}))
    if database.settings.get("PASSWORD"):
        keywords["password"] = database.settings["PASSWORD"]
    return url, keywords


def _postgresql_url(where: str, settings: Mapping[str, Any], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    keywords = {name: str(options.pop(name)) for name in _POSTGRESQL_TAKEN if options.get(name) is not None}
    _refuse_rest(where, options, _POSTGRESQL_IGNORED)
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    if not host or host.startswith(("/", "@")):  # a socket, or the default of libpq
        keywords |= {name: value for name, value in (("host", host), ("port", port)) if value}
        return f"postgresql://{_login(settings)}/{_name(where, settings)}", keywords
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise ConfigurationError(f"{where} has {len(hosts)} hosts and {len(ports)} ports: give one port, or one each")
    nodes = ",".join(map(_node, hosts, ports))
    return f"postgresql://{_login(settings)}{nodes}/{_name(where, settings)}", keywords


def _mysql_url(where: str, settings: Mapping[str, Any], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    keywords: dict[str, Any] = {}
    files, mode = options.pop("ssl", None), options.pop("ssl_mode", None)
    if files is not None:
        if not isinstance(files, Mapping) or files.keys() - _MYSQL_FILES.keys():
            raise ConfigurationError(
                f"{where}['OPTIONS']['ssl'] must be a dict with ca, cert and key: otherwise give holdfast a URL"
            )
        keywords |= {"tls": "yes", **{_MYSQL_FILES[name]: str(path) for name, path in files.items()}}
    if mode is not None:
        if mode not in _MYSQL_MODES:
            raise ConfigurationError(f"{where}['OPTIONS']['ssl_mode'] must be one of {', '.join(_MYSQL_MODES)}")
        keywords |= _MYSQL_MODES[mode]
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    socket = options.pop("unix_socket", None) or (host if host.startswith("/") else None)
    _refuse_rest(where, options, _MYSQL_IGNORED)
    if socket is not None:
        keywords["socket"] = str(socket)
        return f"mysql://{_login(settings)}/{_name(where, settings)}", keywords
    return f"mysql://{_login(settings)}{_node(host or 'localhost', port)}/{_name(where, settings)}", keywords


def _sqlite_url(where: str, settings: Mapping[str, Any]) -> str:
    name = os.fspath(settings.get("NAME") or "")
    if name in {"", ":memory:"} or (name.startswith("file:") and "mode=memory" in name):
        return "memory://"  # the database is private to this process, so its locks are too
    if name.startswith("file:"):
        raise ConfigurationError(f"{where}['NAME'] is a URI of sqlite: give holdfast a URL, sqlite:///folder/file")
    # The database file itself is not used: the locks need another journal mode and tables that no migration knows.
    return f"sqlite://{quote(os.path.abspath(name), safe='/@')}.locks"


def _refuse_rest(where: str, options: Mapping[str, Any], ignored: tuple[str, ...]) -> None:
    for option in options:
        if option not in ignored:
            raise ConfigurationError(
                f"{where}['OPTIONS'][{option!r}] may name another server or user, and holdfast does not use it: give a "
                "URL in place of DATABASE"
            )


def _login(settings: Mapping[str, Any]) -> str:
    user = str(settings.get("USER") or "")
    return f"{quote(user, safe='')}@" if user else ""


def _node(host: str, port: str) -> str:
    name = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{name}:{port}" if port else name


def _name(where: str, settings: Mapping[str, Any]) -> str:
    name = str(settings.get("NAME") or "")
    if not name:
        raise ConfigurationError(f"{where} has no NAME, so holdfast does not know the database: give a URL")
    return quote(name, safe="")
