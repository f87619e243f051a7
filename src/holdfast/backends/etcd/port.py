"""The port of the etcd protocols: calls to the cluster, and notifications when keys change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from holdfast.core.notifications import Wakeups
from holdfast.errors import ConfigurationError

Message = dict[str, Any]  # in etcd's JSON: numbers are strings, bytes are base64, zero values are omitted


class Answer(NamedTuple):
    """The answer to a call."""

    message: Message
    sent: float  # read before the answered request was written
    repeated: bool = False  # an earlier request to another member had no answer, and may still be executed


class Watch(NamedTuple):
    """A watch on one key, or on all keys from `key` to before `end`, from a revision on."""

    key: bytes
    revision: int
    end: bytes = b""  # "": this key only
    puts: bool = False  # notify of new values too, not only of deletes


class LeaseNotFound(Exception):
    """The server refused the request, because the lease does not exist (any more). Never leaves this package."""


class ClusterChanged(ConfigurationError):
    """The answers come from another cluster than before: a restored snapshot, or servers of different clusters.

    Revisions may have gone back, so fences would not be safe.
    """


class EtcdPort(Protocol):
    """One cluster, connected at first use.

    Calls raise BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no answer,
    LeaseNotFound and ClusterChanged as above, and ConfigurationError for a user that lacks a permission.
    """

    @property
    def wakeups(self) -> Wakeups:
        """Receives the notifications."""

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        """Call a member; if it does not answer, call another one, unless the request may be sent only `once`."""

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        """A FIFO mutex for this lock name, so that tasks of one loop queue in the order in which they started.

        Raises:
            BackendUnavailable: other tasks held it until the deadline.
        """

    def watch(self, nonce: str, watches: Sequence[Watch]) -> None:
        """Notify this ticket of these changes. The watches replace its earlier ones."""

    def unwatch(self, nonce: str) -> None:
        """Stop the notifications for this ticket."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close inherited descriptors without sending anything."""
