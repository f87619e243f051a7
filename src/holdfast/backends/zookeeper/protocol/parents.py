"""The nodes that others stand below: which are there, what makes those that are not, and why that was refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.zookeeper.port import CreateParent, Refusal
from holdfast.errors import BackendUnavailable, ConfigurationError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.port import Answer
    from holdfast.errors import HoldfastError

ATTEMPTS_MAX = 5  # times that a node is made anew while others take it away
_KNOWN_MAX = 10_000
_DONE = (None, Refusal.EXISTS, Refusal.NO_NODE)


class Parents:
    """As one client knows them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has_containers = True
        self._known: set[str] = set()  # nodes that locks stand below, and locks' nodes, that were there

    def creates_if_unknown(self, path: str) -> tuple[CreateParent, ...]:
        """What makes the node, and all that it stands below; nothing if it is known to be there."""
        return () if path in self._known else self.creates(path)

    def creates(self, path: str) -> tuple[CreateParent, ...]:
        """What makes the node, known or not, and what it stands below unless that is known to be there."""
        return (*self.ancestor_creates(path), self.create(path))

    def ancestor_creates(self, path: str) -> tuple[CreateParent, ...]:
        """What makes all that the node stands below, to stay; nothing if that is known to be there."""
        above, _, _ = path.rpartition("/")
        missing: list[CreateParent] = []
        while above and above not in self._known:
            missing.append(CreateParent(above, is_container=False))
            above, _, _ = above.rpartition("/")
        return tuple(reversed(missing))

    def create(self, path: str) -> CreateParent:
        """What makes the node alone."""
        return CreateParent(path, is_container=self._has_containers)

    def add_known(self, path: str) -> None:
        """It is there: something was made below it."""
        if path not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known.update((path, path.rpartition("/")[0]))

    def handle_missing(self, path: str, answers: Sequence[Answer]) -> None:
        """A node below it could not be made: begin from the top, or find that we cannot."""
        if not answers or Refusal.NO_NODE in answers:
            # What was known to exist does not: it was deleted, or the servers came back with older data.
            self._known.clear()
        if answers and answers[-1] is Refusal.UNKNOWN_REQUEST and self._has_containers:
            self._has_containers = False
        elif (refused := next((one for one in answers if one not in _DONE), None)) is not None:
            raise self.error_for(refused, path)

    def error_for(self, answer: Answer, what: str) -> HoldfastError:
        """What to raise."""
        if answer is Refusal.NO_RIGHT:
            return ConfigurationError(
                f"{self._url}: this user may not use {what}: log in with zookeeper://user:password@host, or have its "
                "ACL changed"
            )
        if answer is Refusal.OTHER:
            return NameConflict(lock=what, reason="there is an ephemeral node in its place")
        return BackendUnavailable(backend=self._url, problem=f"{what}: {answer}")
