"""What the etcd protocols need of a cluster: one call at a time, and to be told when keys change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from holdfast.errors import ConfigurationError

Message = dict[str, Any]  # as etcd's JSON has it: numbers are strings, bytes are base64, what is zero is left out


class Answer(NamedTuple):
    """What came back."""

    message: Message
    sent: float  # read before the request that was answered was written
    repeated: bool = False  # another member was asked before and gave no answer: it may still do what it was asked


class Watch(NamedTuple):
    """What to be told of: changes of one key, or of all from `key` up to `end`, from a revision on."""

    key: bytes
    revision: int
    end: bytes = b""  # "": this key only
    puts: bool = False  # of new values too, not only of its end


class LeaseNotFound(Exception):
    """The server refused to do anything, for it does not know this lease (any more). Never leaves this package."""


class ClusterChanged(ConfigurationError):
    """The answers come from another cluster than before: a restored snapshot, or servers that do not belong together.

    Revisions may have gone back, so no fence would be right.
    """


class EtcdPort(Protocol):
    """One cluster, connected at first use.

    Calls raise BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no answer,
    LeaseNotFound and ClusterChanged as above, and ConfigurationError for a user that lacks a right.
    """

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        """Ask a member; if it does not answer, another one, unless the request is to be sent `once` at most."""

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        """Have tasks of one loop come to this lock in the order in which they asked for it.

        Raises:
            BackendUnavailable: it did not become this task's turn until the deadline.
        """

    def watch(self, nonce: str, watches: Sequence[Watch]) -> None:
        """Hint at this ticket when something happens there; instead of where it was followed before."""

    def unwatch(self, nonce: str) -> None:
        """No more hints for it."""

    def on_change(self, wake: Callable[[str], None]) -> None:
        """Where hints go, each a nonce."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
