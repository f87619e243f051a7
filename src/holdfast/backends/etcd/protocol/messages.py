"""Messages of etcd's JSON gateway: numbers are strings, bytes are base64, zero values are omitted."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.backends.etcd.port import Message, Watch


class KeyValue(NamedTuple):
    """A key with its value, revisions and lease."""

    key: bytes
    value: bytes
    created: int  # create revision
    lease: int
    modified: int = 0  # mod revision


# ── compares ─────────────────────────────────────────────────────────────────────────────────────────────────────


def absent(key: bytes) -> Message:
    return {"key": b64(key), "target": "CREATE", "create_revision": "0"}


def empty(start: bytes, end: bytes) -> Message:
    """No key exists in the range: etcd compares every key of a range, or revision 0 if there is none."""
    return {**absent(start), "range_end": b64(end)}


def created_at(key: bytes, revision: int) -> Message:
    return {"key": b64(key), "target": "CREATE", "create_revision": str(revision)}


def leased_to(key: bytes, lease: int) -> Message:
    return {"key": b64(key), "target": "LEASE", "lease": str(lease)}


def modified_at(key: bytes, revision: int) -> Message:
    """The key was last written at this revision; 0: it does not exist."""
    return {"key": b64(key), "target": "MOD", "mod_revision": str(revision)}


def none_before(start: bytes, end: bytes, revision: int) -> Message:
    """Every key of the range was created at this revision or later."""
    return {**created_at(start, revision - 1), "range_end": b64(end), "result": "GREATER"}


def none_after(start: bytes, end: bytes, revision: int) -> Message:
    """Every key of the range was created at this revision or earlier."""
    return {**created_at(start, revision + 1), "range_end": b64(end), "result": "LESS"}


# ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────


def put(key: bytes, value: bytes, lease: int) -> Message:
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": str(lease)}}


def delete(key: bytes) -> Message:
    return {"request_delete_range": {"key": b64(key)}}


def get(key: bytes, *, keys_only: bool = False) -> Message:
    return {"request_range": {"key": b64(key), **({"keys_only": True} if keys_only else {})}}


def first(start: bytes, end: bytes) -> Message:
    """The key that was created first."""
    # The order is required, although it is the default: without it etcd applies the limit before it sorts.
    ordered = {"sort_target": "CREATE", "sort_order": "ASCEND", "limit": "1"}
    return {"request_range": {**_range(start, end), **ordered}}


def last(start: bytes, end: bytes, count: int, *, until: int = 0) -> Message:
    """The keys that were created last, the latest one first; `until`: at this revision or earlier."""
    ordered = {"sort_target": "CREATE", "sort_order": "DESCEND", "limit": str(count), "keys_only": True}
    return {"request_range": {**_range(start, end, until), **ordered}}


def all_in_order(start: bytes, end: bytes, *, until: int = 0, keys_only: bool = True) -> Message:
    """All keys of the range, in the order in which they were created; `until`: at this revision or earlier."""
    ordered = {"sort_target": "CREATE", "sort_order": "ASCEND"}
    return {"request_range": {**_range(start, end, until), **ordered, **({"keys_only": True} if keys_only else {})}}


def txn(compare: Sequence[Message], success: Sequence[Message], failure: Sequence[Message] = ()) -> Message:
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


def watch_request(watch: Watch) -> Message:
    wanted: Message = {"key": b64(watch.key), "start_revision": str(watch.revision)}
    if watch.end:
        wanted["range_end"] = b64(watch.end)
    if not watch.puts:
        wanted["filters"] = ["NOPUT"]
    return {"create_request": wanted}


def encoded(message: Mapping[str, Any]) -> bytes:
    return _encode(message).encode()


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # created once, because that is slow


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def revision(answer: Message) -> int:
    return int(answer["header"]["revision"])


def succeeded(answer: Message) -> bool:
    return bool(answer.get("succeeded"))


def kvs(answer: Message, number: int) -> list[KeyValue]:
    """The keys that the operation with this number returned."""
    return [
        KeyValue(
            key=b64decode(kv["key"]),
            value=b64decode(kv.get("value", "")),
            created=int(kv.get("create_revision", 0)),
            lease=int(kv.get("lease", 0)),
            modified=int(kv.get("mod_revision", 0)),
        )
        for kv in answer["responses"][number]["response_range"].get("kvs", ())
    ]


def deleted(answer: Message, number: int) -> bool:
    return bool(int(answer["responses"][number]["response_delete_range"].get("deleted", 0)))


def b64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _range(start: bytes, end: bytes, until: int = 0) -> Message:
    return {"key": b64(start), "range_end": b64(end), **({"max_create_revision": str(until)} if until else {})}
