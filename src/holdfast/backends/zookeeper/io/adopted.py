"""A KazooClient in place of a URL: the same servers, chroot, user, ACL and TLS, with sessions of our own.

Only the settings of the object are read. It need not be started.
"""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from holdfast.backends.net.tls import tls_context
from holdfast.backends.zookeeper.config import ROOT, SETTINGS, Access, ZookeeperConfig
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options
from holdfast.url_parts import Node, values_of


def address_of(client: Any, options: dict[str, str]) -> Address:
    """The address of the servers of this object.

    Raises:
        ConfigurationError: it is not a KazooClient, or has settings that cannot be taken.
    """
    check_options("zookeeper", options)
    for name in sorted(options.keys() - {option.name for option in SETTINGS}):
        raise ConfigurationError(f"{name} is read from the KazooClient: leave it out, or give a URL")
    if not isinstance(client, KazooClient):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"url is a {kind}: give a KazooClient or a URL")
    user, password = _login(client)
    settings = values_of(options, SETTINGS)
    if "acl" not in options and client.default_acl:
        settings["acl"] = tuple(Access(entry.perms, entry.id.scheme, entry.id.id) for entry in client.default_acl)
    hosts = ",".join(str(Node(host.strip(), port)) for host, port in client.hosts)
    root = client.chroot + ROOT
    url = f"zookeeper://{f'{user}:***@' if user else ''}{hosts}{root}"
    config = ZookeeperConfig(
        url=url, hosts=hosts, root=root, user=user, password=password, tls=_tls(client), **settings
    )
    return Address("zookeeper", "", "", options, url, config)


def _login(client: Any) -> tuple[str, str]:
    if client._connection.sasl_options:  # noqa: SLF001 (kazoo keeps them nowhere else)
        raise ConfigurationError("url is a KazooClient that logs in with SASL: holdfast logs in with digest only")
    others = {scheme for scheme, _ in client.auth_data} - {"digest"}
    if others or len(client.auth_data) > 1:
        raise ConfigurationError(
            "url is a KazooClient with several users, or with another scheme than digest: give one that logs in as one "
            "user, or a URL"
        )
    credential = next((credential for _, credential in client.auth_data), "")
    user, _, password = credential.partition(":")
    return user, password


def _tls(client: Any) -> dict[str, str] | None:
    if not client.use_ssl:
        return None
    if client.keyfile_password:
        raise ConfigurationError("url is a KazooClient with a password for its key file: give a key without one")
    files = {"ca_certs": client.ca, "certfile": client.certfile, "keyfile": client.keyfile}
    options = {name: path for name, path in files.items() if path}
    options["verify"] = "required" if client.verify_certs else "none"
    tls_context(options)  # raises ConfigurationError
    return options
