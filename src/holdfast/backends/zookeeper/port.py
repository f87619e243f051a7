"""The port of the ZooKeeper protocol: ZooKeeper's own requests, several in one call, executed in order."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Create(NamedTuple):
    """Create an ephemeral node; if it is sequential, the server appends a number to its name."""

    path: str
    data: bytes
    is_sequential: bool = True


class CreateParent(NamedTuple):
    """Create a parent node. The server deletes a container once it is empty."""

    path: str
    is_container: bool


class CreatePersistent(NamedTuple):
    """Create a node that outlives the session."""

    path: str
    data: bytes


class Delete(NamedTuple):
    """Delete a node; with a version, only if its data have that version."""

    path: str
    version: int = -1


class Children(NamedTuple):
    """The names of a node's children; a watch fires once, when they change or the node is deleted."""

    path: str
    watch: bool = False


class Get(NamedTuple):
    """A node's data; a watch fires once, when they change or the node is deleted."""

    path: str
    watch: bool = False


class Ephemerals(NamedTuple):
    """The paths of the session's ephemeral nodes below this path. Servers before 3.6 do not support the request."""

    path: str


class Set(NamedTuple):
    """Write a node's data; with a version, only if the data have that version."""

    path: str
    data: bytes
    version: int = -1


class Check(NamedTuple):
    """Part of a transaction: require this version of the node's data."""

    path: str
    version: int


class Transaction(NamedTuple):
    """Execute all of these requests or none; the answer is None, or the first refusal."""

    requests: tuple[Check | Set | Delete, ...]


Request = Create | CreateParent | CreatePersistent | Delete | Children | Get | Ephemerals | Set | Transaction


class Created(NamedTuple):
    """Answer to Create."""

    path: str
    czxid: int


class Node(NamedTuple):
    """Answer to Get."""

    data: bytes
    czxid: int
    ctime: float  # Unix time, by the server
    mtime: float
    owner: int  # the session of an ephemeral node, or 0
    version: int = 0  # how often its data were written since it was created


class Refusal(Enum):
    """Why the servers refused a request; nothing was changed."""

    NO_NODE = "no such node"
    EXISTS = "the node exists"
    CHANGED = "the node has another version"
    NO_RIGHT = "this user lacks the permission"
    UNKNOWN_REQUEST = "the server does not support this request"
    OTHER = "refused"


Answer = Created | Node | Refusal | list[str] | None  # None: done, without a result


class Session(Protocol):
    """One session with the ensemble; it has one connection at a time."""

    id: int
    requested: float  # seconds: the requested timeout
    timeout: float  # seconds, as negotiated
    is_closed: bool  # expired or closed: its nodes are deleted, or are being deleted
    rolled_back: bool  # closed, because the servers have older data than this session has seen
    seen: int  # the zxid of the last transaction that it has seen; known once the session is closed

    def __hash__(self) -> int: ...

    @property
    def connection(self) -> int:
        """The number of its connection, counted from 1; 0 while there is none."""

    @property
    def connected_at(self) -> float:
        """When the request was sent after which the leader reset the session's timer."""


class ZookeeperPort(Protocol):
    """One ensemble, connected at first use. It has one session at a time for each requested timeout.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no
    answer, and ConfigurationError when the servers refuse the login.
    """

    @property
    def sessions(self) -> Sequence[Session]:
        """The open sessions."""

    async def open(self, timeout: float, *, deadline: float) -> Session:
        """The open session with this requested timeout, connected; a new one if there is none."""

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        """Send all requests and return their answers: the servers execute a session's requests in order."""

    def send(self, session: Session, request: Request) -> None:
        """Send a request after all earlier ones, and do not wait for its answer."""

    def disconnect(self, session: Session) -> None:
        """The server does not answer: close the connection, and let the session connect to another server."""

    def close_session(self, session: Session) -> None:
        """Close a session, which deletes its nodes, without waiting for it."""

    def on_events(self, fired: Callable[[Session, str], None], changed: Callable[[Session], None]) -> None:
        """Set the callbacks: a watch on a path has fired; a session or its connection was opened or closed."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background, until it ends or the port is closed."""

    async def close(self, *, keeps_session: bool = False) -> None:
        """Close the sessions too; or leave them to the leader's timers, so that their nodes stay until then."""

    def without_loop(self) -> None:
        """At the end of the process: wait for answers without the loop, which is closed."""

    def abandon(self) -> None:
        """In a forked child: close inherited descriptors without sending anything."""
