"""Translates etcd's errors; no other module does.

The gateway passes on gRPC's code and etcd's message. Only a few errors mean for certain that nothing was changed; a
request that timed out inside the server, or during a change of leader, may have been executed.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.backends.etcd.io.http import Response
from holdfast.backends.etcd.port import LeaseNotFound, Message
from holdfast.errors import AccessDenied, BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.url_parts import Node

_OK, _NOT_FOUND = 200, 404
_INVALID, _PERMISSION_DENIED, _EXHAUSTED, _UNAUTHENTICATED = 3, 7, 8, 16

# Errors that are returned before anything is proposed to the cluster.
_NOTHING_DONE = ("no leader", "too many requests", "not capable", "rpc not supported for learner", "unhealthy cluster")
_TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty", "user name not found")


class TokenRefused(Exception):
    """The token is not valid, and nothing was changed: authenticate, then repeat. Never leaves this package."""


class NoAuthentication(Exception):
    """The cluster has authentication disabled. Never leaves this package."""


_decode = json.JSONDecoder().decode  # json.loads() detects the encoding of bytes first


def message_of(response: Response, url: str, node: Node) -> Message:
    """The message of an answer. Raises its error if it is one."""
    if response.status != _OK:
        raise error_for(response.status, response.body, url, str(node))
    try:
        message: Message = _decode(response.body.decode())
    except ValueError as error:
        raise OutcomeUnknown(backend=url, problem=f"{node}'s answer is not JSON: {error}") from error
    if "error" in message:  # an error in a stream, such as keep-alive, follows its status 200
        raise error_for(response.status, response.body, url, str(node))
    return message


def error_for(status: int, body: bytes, url: str, node: str) -> Exception:
    """The error to raise for an answer that is an error."""
    if b"CommonName of client sending a request against gateway" in body:
        return ConfigurationError(
            f"{url}: with authentication on, etcd's JSON gateway takes no client certificate that has a CommonName: "
            "use one without (and a user and password), or turn authentication or --client-cert-auth off"
        )
    try:
        fields: Any = json.loads(body)
        if isinstance(fields.get("error"), dict):  # in a stream
            fields = fields["error"]
        message = str(fields.get("message") or fields["error"])
        code = int(fields.get("code") or fields.get("grpc_code", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _not_etcd(status, body, url, node)
    words = message.removeprefix("etcdserver: ")
    if words == "requested lease not found":
        return LeaseNotFound(message)
    if code == _UNAUTHENTICATED or words in _TOKEN_REFUSED:
        return TokenRefused(message)
    if words == "authentication is not enabled":
        return NoAuthentication(message)
    if code == _PERMISSION_DENIED or words == "permission denied":
        problem = (
            f"this user lacks a permission that locks need, readwrite on all keys that begin with prefix=: {message}"
        )
        return AccessDenied(backend=url, problem=problem)
    if words.startswith("authentication failed"):
        return ConfigurationError(f"{url}: etcd did not accept this user and password")
    problem = f"{node}: {message}"
    if "database space exceeded" in words:
        problem = f"{problem}: it accepts no new keys until space is freed and `etcdctl alarm disarm` was run"
        return BackendUnavailable(backend=url, problem=problem)
    if code in (_INVALID, _EXHAUSTED) or any(known in words for known in _NOTHING_DONE):
        return BackendUnavailable(backend=url, problem=problem)
    return OutcomeUnknown(backend=url, problem=problem)


def _not_etcd(status: int, body: bytes, url: str, node: str) -> Exception:
    text = " ".join(body[:100].decode(errors="replace").split())
    if status == _NOT_FOUND:
        return BackendUnavailable(
            backend=url,
            problem=f"{node} has no JSON gateway at /v3 (etcd 3.4 and later have one, unless it is turned off): {text}",
        )
    return OutcomeUnknown(backend=url, problem=f"{node} answered {status}: {text}")
