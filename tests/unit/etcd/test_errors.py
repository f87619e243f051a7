"""Hazard: an error is reported as "nothing was changed" although a lock may have been acquired, and stays held."""

from __future__ import annotations

import json

import pytest

from holdfast.backends.etcd.io.errors import NoAuthentication, TokenRefused, error_for, message_of
from holdfast.backends.etcd.io.http import Response
from holdfast.backends.etcd.port import LeaseNotFound
from holdfast.errors import AccessDenied, BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.url_parts import Node


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (14, "etcdserver: request timed out", OutcomeUnknown),
        (14, "etcdserver: request timed out, possibly due to previous leader failure", OutcomeUnknown),
        (14, "etcdserver: leader changed", OutcomeUnknown),
        (14, "etcdserver: server stopped", OutcomeUnknown),
        (1, "context canceled", OutcomeUnknown),
        (2, "whatever is new", OutcomeUnknown),
        (14, "etcdserver: no leader", BackendUnavailable),
        (8, "etcdserver: too many requests", BackendUnavailable),
        (8, "etcdserver: mvcc: database space exceeded", BackendUnavailable),
        (3, "etcdserver: request is too large", BackendUnavailable),
        (14, "etcdserver: rpc not supported for learner", BackendUnavailable),
        (5, "etcdserver: requested lease not found", LeaseNotFound),
        (16, "etcdserver: invalid auth token", TokenRefused),
        (3, "etcdserver: revision of auth store is old", TokenRefused),
        (3, "etcdserver: user name is empty", TokenRefused),
        (9, "etcdserver: authentication is not enabled", NoAuthentication),
        (7, "etcdserver: permission denied", AccessDenied),
        (3, "etcdserver: authentication failed, invalid user ID or password", ConfigurationError),
    ],
)
def test_error_for_translates_etcd_errors(code: int, message: str, expected: type[Exception]) -> None:
    body = json.dumps({"error": message, "message": message, "code": code}).encode()

    assert type(error_for(503, body, "etcd://h", "h:2379")) is expected


@pytest.mark.parametrize("code_field", ["grpc_code", "code"])  # up to etcd 3.5, and since 3.6
def test_message_of_raises_the_error_of_a_stream_when_its_status_is_200(code_field: str) -> None:
    response = Response()
    body = json.dumps({"error": {code_field: 8, "message": "not known here", "details": []}}).encode()
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with pytest.raises(BackendUnavailable, match="h:2379: not known here"):
        message_of(response, "etcd://h", Node("h", 2379))


def test_error_for_returns_outcome_unknown_when_the_answer_is_not_from_etcd() -> None:
    assert isinstance(error_for(502, b"<html>Bad Gateway</html>", "etcd://h", "h:2379"), OutcomeUnknown)
    assert isinstance(error_for(404, b"404 page not found", "etcd://h", "h:2379"), BackendUnavailable)
