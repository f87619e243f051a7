"""Parent nodes: which of them exist, the requests that create the missing ones, and the errors for refusals."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.zookeeper.port import Answer, CreateParent, Refusal
from holdfast.errors import AccessDenied, BackendUnavailable, HoldfastError, NameConflict

ATTEMPTS_MAX = 5  # attempts to create a node, while other programs delete it or its parents
_KNOWN_MAX = 10_000
_NO_ERROR = (None, Refusal.EXISTS, Refusal.NO_NODE)  # after these answers the next attempt can succeed


class Parents:
    """The parent nodes that one client knows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has_containers = True
        self._known: set[str] = set()  # nodes of locks, and parents of nodes, that existed when they were last used

    def create_requests_if_unknown(self, path: str) -> tuple[CreateParent, ...]:
        """Requests that create the node and its ancestors; none if it is known to exist."""
        return () if path in self._known else self.create_requests(path)

    def create_requests(self, path: str) -> tuple[CreateParent, ...]:
        """Requests that create the node, known or not, and those of its ancestors that are not known to exist."""
        return (*self.ancestor_create_requests(path), self.create_request(path))

    def ancestor_create_requests(self, path: str) -> tuple[CreateParent, ...]:
        """Requests that create the node's ancestors as persistent nodes, without those that are known to exist."""
        above, _, _ = path.rpartition("/")
        missing: list[CreateParent] = []
        while above and above not in self._known:
            missing.append(CreateParent(above, is_container=False))
            above, _, _ = above.rpartition("/")
        return tuple(reversed(missing))

    def create_request(self, path: str) -> CreateParent:
        """The request that creates only this node."""
        return CreateParent(path, is_container=self._has_containers)

    def add_known(self, path: str) -> None:
        """The node exists: a child of it was created."""
        if path not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known.update((path, path.rpartition("/")[0]))

    def handle_missing(self, path: str, answers: Sequence[Answer]) -> None:
        """A child could not be created, because the node is missing: prepare the next attempt, or raise.

        `answers` are the answers to the requests that create the node and its ancestors.
        """
        if not answers or Refusal.NO_NODE in answers:
            # A known node does not exist: it was deleted, or the servers have older data than before.
            self._known.clear()
        if answers and answers[-1] is Refusal.UNKNOWN_REQUEST:
            # Only a request for a container is refused so, and others may have been sent before this answer arrived.
            self._has_containers = False
        elif (refused := next((answer for answer in answers if answer not in _NO_ERROR), None)) is not None:
            raise self.error_for(refused, path)

    def error_for(self, answer: Answer, path: str) -> HoldfastError:
        """The error for a refusal."""
        if answer is Refusal.NO_RIGHT:
            problem = (
                f"this user may not use {path}: log in with zookeeper://user:password@host, or add the user to its ACL "
                "(the node of the url: `cr`, nodes below it: `cdrwa`)"
            )
            return AccessDenied(backend=self._url, problem=problem)
        if answer is Refusal.OTHER:
            return NameConflict(lock=path, reason="there is an ephemeral node in its place")
        return BackendUnavailable(backend=self._url, problem=f"{path}: {reason_of(answer)}")


def reason_of(answer: Answer) -> str:
    """The reason for a refusal in words."""
    return answer.value if isinstance(answer, Refusal) else f"unexpected answer {answer}"
