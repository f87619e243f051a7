"""TLS by the options of a URL: the files with certificates, and the SSLContext."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from holdfast.errors import ConfigurationError
from holdfast.url_parts import Option, flag

_FILES = ("ca_certs", "certfile", "keyfile")
VERIFY = flag(
    "verify",
    "required",
    "`required`: check the certificate and the host name of the server; `none`: check neither",
    yes="required",
    no="none",
)


def tls_options(*schemes: str) -> tuple[Option, ...]:
    """The options for certificates, of these schemes or of all schemes of a backend."""
    options = (
        Option("ca_certs", None, "file with the authorities that sign the server's certificate, if not the system's"),
        Option("certfile", None, "file with the client's certificate"),
        Option("keyfile", None, "file with the key of `certfile`, if it is not in the same file"),
        VERIFY,
    )
    return tuple(option._replace(schemes=schemes) for option in options)


def tls_files(texts: Mapping[str, str], *, is_on: bool) -> dict[str, str]:
    """The options that name files with certificates. They must be readable, and TLS must be on.

    Raises:
        ConfigurationError: names the option and the fix.
    """
    files = {name: texts[name] for name in _FILES if name in texts}
    given = next((name for name in (*_FILES, "verify") if name in texts), None)
    if given and not is_on:
        raise ConfigurationError(f"{given} is for TLS: add tls=yes")
    if "keyfile" in files and "certfile" not in files:
        raise ConfigurationError("url has keyfile= without certfile=: give both, or neither")
    for name, path in files.items():
        if not os.access(path, os.R_OK) or os.path.isdir(path):
            raise ConfigurationError(f"url has {name}={path!r}, which is not a file that this user may read")
    return files


def tls_context(texts: Mapping[str, str], *, is_on: bool = True) -> ssl.SSLContext | None:
    """The context for connections with TLS, or None if TLS is off.

    Raises:
        ConfigurationError: names the option and the fix.
    """
    files, is_verified = tls_files(texts, is_on=is_on), VERIFY.value(texts)
    if not is_on:
        return None
    try:
        context = ssl.create_default_context(cafile=files.get("ca_certs"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, ValueError) as error:
        given = ", ".join(f"{name}={path!r}" for name, path in files.items())
        raise ConfigurationError(f"url has {given}, which cannot be used: {error}") from error
    if not is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
