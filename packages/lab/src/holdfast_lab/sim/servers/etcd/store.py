"""The part of etcd's v3 API that locks use, in the JSON of its gateway."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.backends.etcd.port import LeaseNotFound
from holdfast.backends.etcd.protocol.messages import b64

Message = dict[str, Any]


class Change(NamedTuple):
    """One change of a key, for watches."""

    revision: int
    key: bytes
    is_delete: bool


@dataclass(slots=True)
class Value:
    """The current state of a key."""

    value: bytes
    created: int
    modified: int
    version: int
    lease: int


@dataclass(slots=True)
class Lease:
    """One lease."""

    ttl: int
    expires_at: float
    keys: set[bytes] = field(default_factory=set)


class Snapshot(NamedTuple):
    """The data for a later restore."""

    revision: int
    keys: dict[bytes, Value]
    leases: dict[int, Lease]
    changes: int  # the number of changes until then


class Store:
    """All keys and leases. Callers pass the time."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[bytes, Value] = {}
        self.leases: dict[int, Lease] = {}
        self.changes: list[Change] = []  # all since the start
        self.last_lease = 1000
        self.term = 3  # after an election; the first term of a new cluster is 2

    def call(self, method: str, message: Mapping[str, Any], now: float) -> Message:
        """Answer one request.

        Raises:
            LeaseNotFound: the request names a lease that does not exist.
        """
        verbs: Mapping[str, Callable[[Mapping[str, Any], float], Message]] = {
            "kv/txn": self._txn,
            "kv/range": self._range,
            "kv/deleterange": self._delete_range,
            "lease/grant": self._grant,
            "lease/keepalive": self._keep_alive,
            "lease/revoke": self._revoke,
            "lease/timetolive": self._time_to_live,
        }
        return verbs[method](message, now)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _txn(self, message: Mapping[str, Any], now: float) -> Message:
        succeeded = all(self._is_true(compare) for compare in message.get("compare", ()))
        operations = message.get("success" if succeeded else "failure", ())
        for operation in operations:
            lease = int(operation.get("request_put", {}).get("lease", 0))
            if lease and lease not in self.leases:
                raise LeaseNotFound("etcdserver: requested lease not found")
        new = self.revision + 1  # the revision of all changes of this transaction
        responses: list[Message] = []
        for operation in operations:
            match operation:
                case {"request_put": wanted}:
                    self._put(b64decode(wanted["key"]), b64decode(wanted.get("value", "")), wanted, new)
                    responses.append({"response_put": {"header": self._header()}})
                case {"request_delete_range": wanted}:
                    responses.append({"response_delete_range": self._delete_all(wanted, new)})
                case {"request_range": wanted}:
                    responses.append({"response_range": self._range(wanted, now)})
                case _:
                    raise AssertionError(f"the model does not support this operation: {operation}")
        answer: Message = {"header": self._header()}
        if succeeded:
            answer["succeeded"] = True
        return {**answer, "responses": responses} if responses else answer

    def _delete_range(self, message: Mapping[str, Any], now: float) -> Message:
        return self._delete_all(message, self.revision + 1)

    def _delete_all(self, wanted: Mapping[str, Any], revision: int) -> Message:
        keys = list(self._keys_in(wanted))
        for key in keys:
            self._delete(key, revision)
        deleted = {"deleted": str(len(keys))} if keys else {}
        return {"header": self._header(), **deleted}

    def _put(self, key: bytes, value: bytes, wanted: Mapping[str, Any], revision: int) -> None:
        lease = int(wanted.get("lease", 0))
        old = self.keys.get(key)
        if old is not None and old.lease in self.leases:
            self.leases[old.lease].keys.discard(key)
        created, version = (revision, 1) if old is None else (old.created, old.version + 1)
        self.keys[key] = Value(value, created, revision, version, lease)
        if lease:
            self.leases[lease].keys.add(key)
        self._changed(Change(revision, key, is_delete=False))

    def _delete(self, key: bytes, revision: int) -> None:
        old = self.keys.pop(key)
        if old.lease in self.leases:
            self.leases[old.lease].keys.discard(key)
        self._changed(Change(revision, key, is_delete=True))

    def _changed(self, change: Change) -> None:
        self.changes.append(change)
        self.revision = change.revision

    def _range(self, message: Mapping[str, Any], now: float) -> Message:
        items = [(key, self.keys[key]) for key in self._keys_in(message)]
        count, until = len(items), int(message.get("max_create_revision", 0))
        if until:
            items = [(key, value) for key, value in items if value.created <= until]
        if "sort_target" in message:  # by create revision, the only order that the protocols request
            items.sort(key=_created, reverse=message["sort_order"] == "DESCEND")
        limit = int(message.get("limit", 0))
        answer: Message = {"header": self._header()}
        if limit and len(items) > limit:
            items, answer["more"] = items[:limit], True
        if items:
            answer["kvs"] = [_as_json(key, value, keys_only=bool(message.get("keys_only"))) for key, value in items]
        return {**answer, "count": str(count)} if count else answer

    def _is_true(self, compare: Mapping[str, Any]) -> bool:
        """Every key of a range is compared; if there is none, revision 0."""
        values = [self.keys[key] for key in self._keys_in(compare)]
        if compare["target"] == "MOD":
            wanted, actual = int(compare.get("mod_revision", 0)), [value.modified for value in values] or [0]
        elif compare["target"] == "LEASE":
            wanted, actual = int(compare.get("lease", 0)), [value.lease for value in values] or [0]
        else:
            wanted, actual = int(compare.get("create_revision", 0)), [value.created for value in values] or [0]
        match compare.get("result", "EQUAL"):
            case "GREATER":
                return all(revision > wanted for revision in actual)
            case "LESS":
                return all(revision < wanted for revision in actual)
            case _:
                return all(revision == wanted for revision in actual)

    def _keys_in(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        key, end = b64decode(message["key"]), b64decode(message.get("range_end", ""))
        if not end:
            if key in self.keys:
                yield key
        else:
            yield from sorted(other for other in self.keys if other >= key and (end == b"\0" or other < end))

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _grant(self, message: Mapping[str, Any], now: float) -> Message:
        self.last_lease += 1
        lease_id, ttl = int(message.get("ID", 0)) or self.last_lease, int(message["TTL"])
        self.leases[lease_id] = Lease(ttl, now + ttl)
        return {"header": self._header(), "ID": str(lease_id), "TTL": str(ttl)}

    def _keep_alive(self, message: Mapping[str, Any], now: float) -> Message:
        lease = self.leases.get(int(message["ID"]))
        answer = {"header": self._header(), "ID": message["ID"]}
        if lease is not None:
            lease.expires_at = now + lease.ttl
            answer["TTL"] = str(lease.ttl)
        return {"result": answer}

    def _revoke(self, message: Mapping[str, Any], now: float) -> Message:
        if int(message["ID"]) not in self.leases:
            raise LeaseNotFound("etcdserver: requested lease not found")
        self.expire_lease(int(message["ID"]))
        return {"header": self._header()}

    def _time_to_live(self, message: Mapping[str, Any], now: float) -> Message:
        lease = self.leases.get(int(message["ID"]))
        if lease is None:
            return {"header": self._header(), "ID": message["ID"], "TTL": "-1"}
        left = {"TTL": str(int(lease.expires_at - now)), "grantedTTL": str(lease.ttl)}
        return {"header": self._header(), "ID": message["ID"], **left}

    def expire_lease(self, lease_id: int) -> None:
        """End a lease and delete all of its keys in one revision."""
        new = self.revision + 1
        for key in sorted(self.leases[lease_id].keys):
            self._delete(key, new)
        del self.leases[lease_id]

    def renew_all(self, now: float) -> float:
        """Renew all leases, as a new leader does, because it does not know their remaining time.

        Returns the longest time by which that extends a lease.
        """
        before = {lease_id: lease.expires_at for lease_id, lease in self.leases.items()}
        for lease in self.leases.values():
            lease.expires_at = now + lease.ttl
        return max((lease.expires_at - before[lease_id] for lease_id, lease in self.leases.items()), default=0.0)

    def snapshot(self) -> Snapshot:
        leases = {number: Lease(lease.ttl, lease.expires_at, set(lease.keys)) for number, lease in self.leases.items()}
        return Snapshot(self.revision, dict(self.keys), leases, len(self.changes))

    def restore(self, old: Snapshot, now: float) -> None:
        """Like `etcdutl snapshot restore` without --bump-revision: a new cluster with the old data and the same id.

        It has the leases of the snapshot, with their whole ttl. Lease ids are random, so none is used again.
        """
        self.revision, self.keys = old.revision, dict(old.keys)
        self.leases = {
            number: Lease(lease.ttl, now + lease.ttl, set(lease.keys)) for number, lease in old.leases.items()
        }
        del self.changes[old.changes :]
        self.term = 2

    def _header(self) -> Message:
        return {"member_id": "1", "revision": str(self.revision), "raft_term": str(self.term)}


def _created(item: tuple[bytes, Value]) -> int:
    return item[1].created


def _as_json(key: bytes, value: Value, *, keys_only: bool) -> Message:
    kv = {
        "key": b64(key),
        "create_revision": str(value.created),
        "mod_revision": str(value.modified),
        "version": str(value.version),
    }
    if value.value and not keys_only:
        kv["value"] = b64(value.value)
    if value.lease:
        kv["lease"] = str(value.lease)
    return kv
