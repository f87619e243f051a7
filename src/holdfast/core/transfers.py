"""The text with which another process adopts a lease: the name of the lock, the nonce of the ticket, its options.

Modules are imported at the first use, so that `import holdfast` stays fast.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import ConfigurationError

_PREFIX = "holdfast-lease-1."  # a later format has another number
_CHECK = 16  # characters of the checksum, which finds damaged texts


class Transfer(NamedTuple):
    """A lease that was transferred. A process that has its nonce can adopt it, so the text is a secret."""

    store: str  # the kind of the store, as redis
    name: str
    nonce: str
    ttl: float
    min_hold_left: float  # the remaining seconds of its min_hold at the transfer

    def __repr__(self) -> str:
        return f"<Transfer of {self.name!r}>"


def encode_transfer(transfer: Transfer) -> str:
    import json
    from base64 import urlsafe_b64encode

    body = urlsafe_b64encode(json.dumps(list(transfer)).encode()).decode().rstrip("=")
    return f"{_PREFIX}{body}.{_checksum(body)}"


def decode_transfer(text: object) -> Transfer:
    """The lease that a text describes.

    Raises:
        ConfigurationError: it is not such a text, or is damaged. The message does not contain it.
    """
    import json
    from base64 import urlsafe_b64decode

    if not isinstance(text, str):
        raise ConfigurationError(f"adopt() takes the text that lease.transfer() returned, not {type(text).__name__}")
    body, _, checksum = text.strip().removeprefix(_PREFIX).partition(".")
    if not text.strip().startswith(_PREFIX) or checksum != _checksum(body):
        raise ConfigurationError(
            "adopt() takes the text that lease.transfer() returned; this one is another or damaged"
        )
    store, name, nonce, ttl, min_hold_left = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return Transfer(str(store), str(name), str(nonce), float(ttl), float(min_hold_left))


def _checksum(body: str) -> str:
    import hashlib

    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:_CHECK]
