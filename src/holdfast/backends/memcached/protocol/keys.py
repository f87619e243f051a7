"""The keys of locks and registers, and the server of a key.

A key has at most 250 bytes, without blanks and control characters. A name is therefore encoded as in a URL: characters
that are not plain become %XX, and % becomes %25. If the key would be too long, it has `%sha256:` and a digest in place
of the name, and the value of the item has the name. The key of a register has `%mark:` before the name. No encoded name
begins in this way, because two hexadecimal digits follow each of its %.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url_parts import Node

KEY_MAX = 250
PREFIX_MAX = 128
_PLAIN = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # in addition to letters and digits
_DIGEST = "%sha256:"
_REGISTER = "%mark:"


def check_prefix(prefix: str) -> str:
    """Refuse a prefix that cannot begin a key.

    Raises:
        ConfigurationError: it is too long, or has a character that a key cannot have.
    """
    if len(prefix) > PREFIX_MAX or "%" in prefix or any(not "!" <= character <= "~" for character in prefix):
        raise ConfigurationError(
            f"url has prefix={prefix!r}: at most {PREFIX_MAX} visible ASCII characters, no blanks and no %"
        )
    return prefix


@functools.lru_cache(maxsize=4096)
def key_of(prefix: str, name: str) -> bytes:
    """The key of a lock."""
    key = prefix + quote(name, safe=_PLAIN)
    if len(key) > KEY_MAX:
        key = f"{prefix}{_DIGEST}{sha256(name.encode()).hexdigest()}"
    return key.encode()


def register_key_of(prefix: str, name: str) -> bytes:
    """The key of a register."""
    return key_of(prefix + _REGISTER, name)


def name_of(prefix: str, key: bytes) -> str | None:
    """The name of the lock with this key; None if it is not a lock's key, or has only a digest of the name."""
    text = key.decode(errors="replace")
    if not text.startswith(prefix) or text.startswith((prefix + _DIGEST, prefix + _REGISTER)):
        return None
    return unquote(text[len(prefix) :])


@functools.lru_cache(maxsize=4096)
def node_of(key: bytes, nodes: Sequence[Node]) -> Node:
    """The server that has this key: the one with the highest score for it (rendezvous hashing).

    If a server is removed from the list, only its own keys move; a server that is added takes a share of the keys of
    all others. The order of the list does not matter.
    """
    if len(nodes) == 1:
        return nodes[0]
    # blake2b takes at most 64 bytes as its key. Two servers with the same first 64 bytes are ordered by their names.
    return max(nodes, key=lambda node: (blake2b(key, key=str(node).encode()[:64], digest_size=8).digest(), str(node)))
