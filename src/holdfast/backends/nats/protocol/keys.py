"""Names of buckets, and the keys of locks and registers in them.

    lock.<name>       register.<name>

A key is a part of a subject, where a dot separates tokens and `*` and `>` are wildcards. In the name, every character
other than ASCII letters, digits, `-`, `_` and `/` is encoded as `=` and two hexadecimal digits for each byte of UTF-8.
A long name is replaced by its SHA-256; the name itself is in the value.
"""

from __future__ import annotations

import functools
import re
from hashlib import sha256
from urllib.parse import quote

from holdfast.errors import ConfigurationError

LOCKS = "lock."
_NAME_MAX = 200  # characters of an encoded name
_DIGEST = "=sha256="


def check_bucket(bucket: str) -> str:
    """Raise ConfigurationError for text that cannot name a bucket."""
    if not re.fullmatch("[A-Za-z0-9_-]{1,200}", bucket):
        raise ConfigurationError(f"url has bucket={bucket!r}: use 1 to 200 letters, digits, - and _")
    return bucket


@functools.lru_cache(maxsize=4096)
def lock_key(name: str) -> str:
    return LOCKS + _encoded(name)


def register_key(name: str) -> str:
    return f"register.{_encoded(name)}"


def _encoded(name: str) -> str:
    # quote() never encodes - _ . ~ and /; the dot and the tilde are encoded here.
    encoded = quote(name, safe="/").replace(".", "%2E").replace("~", "%7E").replace("%", "=")
    return encoded or "=" if len(encoded) <= _NAME_MAX else _DIGEST + sha256(name.encode()).hexdigest()
