"""The bucket: the settings of its stream, the requests about it, and what their answers mean.

A bucket is a stream KV_<bucket> with the subjects $KV.<bucket>.<key>, as other programs use it too (ADR-8 of NATS).
These settings are needed for leases:

    allow_msg_ttl               an entry has a ttl, and the server removes it
    subject_delete_marker_ttl   the leader proposes the removal to the other servers, instead of each server removing
                                the entry by its own clock
    max_msgs_per_subject 1      only the last entry of a key exists
    republish                   after an entry is stored, its header is published: the notifications

With subject_delete_marker_ttl, the server replaces an expired entry by a marker, without a condition: also if another
entry was stored since it proposed this. That would remove the lease of the next holder. An entry that is a marker
itself is removed by its sequence number instead. So all entries have the header of markers, Nats-Marker-Reason, with a
value of our own, which other clients of NATS take for an ordinary entry.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.backends.nats.port import ABSENT, Entry, Put
from holdfast.backends.nats.protocol.wire import Message, parse_headers, publish
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown

MARKER_SECONDS = 60  # a request without an answer counts as dropped after this time
NOT_FOUND = 404
_WRONG_LAST = (10071, 10164)  # the second: another write of the key is in progress
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_TTL = "Nats-TTL"
_REASON, _OUR_REASON = "Nats-Marker-Reason", "holdfast"


class Bucket:
    """Subjects, requests and answers of one bucket."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self.name, self.stream = url, name, f"KV_{name}"

    def subject(self, key: str) -> str:
        return f"$KV.{self.name}.{key}"

    def notifications(self, key: str) -> str:
        return f"holdfast.{self.name}.{key}"

    def settings(self, replicas: int, first_seq: int) -> dict[str, Any]:
        """The settings of a new stream."""
        return {
            "name": self.stream,
            "subjects": [self.subject(">")],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": MARKER_SECONDS * 10**9,
            "republish": {"src": self.subject(">"), "dest": self.notifications(">"), "headers_only": True},
            # Fences stay greater than those of a bucket with this name that was deleted before.
            "first_seq": first_seq,
        }

    def check(self, settings: Mapping[str, Any], replicas: int) -> None:
        """Raise ConfigurationError for a stream whose settings rule out locks."""
        wanted = {**self.settings(replicas, 0), "retention": "limits", "max_age": 0}
        del wanted["first_seq"], wanted["deny_delete"]
        actual = {name: settings.get(name) for name in wanted}
        for name in ("num_replicas", "subject_delete_marker_ttl"):  # more is accepted
            actual[name] = min(actual[name] or 0, wanted[name])
        for name, value in wanted.items():
            if actual[name] != value:
                raise ConfigurationError(
                    f"{self._url}: the bucket {self.name!r} has {name}={json.dumps(settings.get(name))}, but locks "
                    f"need {json.dumps(value)}: change it, or let holdfast create a bucket of another name"
                )

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put_request(self, put: Put, reply: str) -> bytes:
        headers: dict[str, object] = {_EXPECTED: put.last, _TTL: put.seconds}
        headers |= {"KV-Operation": "PURGE", "Nats-Rollup": "sub"} if put.is_marker else {_REASON: _OUR_REASON}
        return publish(self.subject(put.key), reply, put.value, headers)

    def api_request(self, verb: str, reply: str, **arguments: Any) -> bytes:
        """A request to the API of JetStream, which the leader of the stream or of the cluster answers."""
        return publish(f"$JS.API.STREAM.{verb}.{self.stream}", reply, json.dumps(arguments).encode())

    def get_request(self, key: str, reply: str) -> bytes:
        return self.api_request("MSG.GET", reply, last_by_subj=self.subject(key))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put_answer(self, message: Message) -> int | BackendError | None:
        """The sequence number of the new entry; None: refused, because the last entry is another one."""
        try:
            answer = self.answer(message)
        except BackendError as failure:
            return failure
        error = answer.get("error")
        if error is None:
            return int(answer["seq"])
        return None if error.get("err_code") in _WRONG_LAST else self.error(error)

    def get_answer(self, message: Message, now: datetime | None) -> Entry:
        """The entry, or ABSENT. `now` is the time of the server, if the remaining time is wanted."""
        answer = self.answer(message)
        error = answer.get("error")
        if error is not None:
            if error.get("code") == NOT_FOUND:
                return ABSENT
            raise self.error(error)
        entry = answer["message"]
        _, headers = parse_headers(base64.b64decode(entry.get("hdrs", "")))
        remaining = float("inf")
        if now is not None and headers.get(_TTL, "").isdigit():
            remaining = int(headers[_TTL]) - (now - datetime.fromisoformat(entry["time"])).total_seconds()
        return Entry(int(entry["seq"]), base64.b64decode(entry.get("data", "")), is_marker(headers), remaining)

    def answer(self, message: Message) -> dict[str, Any]:
        """The JSON of an answer, which may have an `error`. Raises BackendUnavailable or OutcomeUnknown."""
        if message.status:
            problem = "no server has the bucket now: JetStream is off or starts, its leader is being elected, or"
            raise BackendUnavailable(backend=self._url, problem=f"{problem} the bucket {self.name!r} was deleted")
        try:
            return dict(json.loads(message.data))
        except (ValueError, TypeError) as error:
            raise OutcomeUnknown(backend=self._url, problem=f"its answer is not JSON: {error}") from error

    def error(self, error: Mapping[str, Any]) -> BackendError:
        """The error to raise. A code of 4xx is a refusal before anything was proposed to the other servers."""
        problem = f"{error.get('description', '?')} ({error.get('err_code', 0)})"
        kind = BackendUnavailable if 400 <= int(error.get("code", 0)) < 500 else OutcomeUnknown  # noqa: PLR2004
        return kind(backend=self._url, problem=problem)


def is_marker(headers: Mapping[str, str]) -> bool:
    """Whether an entry with this header means that the key was deleted, by a client or by the server."""
    return headers.get("KV-Operation", "PUT") != "PUT" or headers.get(_REASON, _OUR_REASON) != _OUR_REASON
