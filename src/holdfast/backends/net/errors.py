"""Errors of a request to one server of a client. Pure, so protocols use them too."""

from __future__ import annotations

from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.url_parts import Node


def not_sent(url: str, node: Node, problem: str) -> BackendUnavailable:
    """The server has not received the request."""
    return BackendUnavailable(backend=url, problem=located(url, node, problem))


def no_answer(url: str, node: Node, problem: str) -> OutcomeUnknown:
    """The server may have executed the request."""
    return OutcomeUnknown(backend=url, problem=located(url, node, problem))


def located(url: str, node: Node, problem: str) -> str:
    """The problem of a server of this URL. The text names the server, unless it is the only one in the URL."""
    hosts = url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]
    return problem if hosts == str(node) else f"{node}: {problem}"
