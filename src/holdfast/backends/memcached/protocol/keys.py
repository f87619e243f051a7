"""Under which key a lock or a mark is, and on which of several servers.

A key has at most 250 bytes, none of them a blank or a control character. So a name is written as in a URL: what is no
plain character is %XX, and % itself is %25. One that gets too long is `%sha256:` and its digest, which no written name
can look like; the plain name stands in the value. That of a mark begins with `%mark:`, likewise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import Node

KEY_MAX = 250
PREFIX_MAX = 128
_PLAIN = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # beside letters and digits
_DIGEST = "%sha256:"
_MARK = "%mark:"


def check_prefix(prefix: str) -> str:
    """Raise ConfigurationError for one that cannot stand at the beginning of a key."""
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


def mark_key_of(prefix: str, name: str) -> bytes:
    """The key of a mark."""
    return key_of(prefix + _MARK, name)


def name_of(prefix: str, key: bytes) -> str | None:
    """The lock that has this key; None if it is no lock's, or only a digest of its name."""
    text = key.decode(errors="replace")
    if not text.startswith(prefix) or text.startswith((prefix + _DIGEST, prefix + _MARK)):
        return None
    return unquote(text[len(prefix) :])


@functools.lru_cache(maxsize=4096)
def home_of(key: bytes, nodes: Sequence[Node]) -> Node:
    """The server that has this key: the one with the highest score for it (rendezvous hashing).

    Take one server out of the list, and only its own keys move; add one, and it takes its share from all. The order of
    the list does not matter.
    """
    if len(nodes) == 1:
        return nodes[0]
    return max(nodes, key=lambda node: (blake2b(key, key=str(node).encode()[:64], digest_size=8).digest(), str(node)))
