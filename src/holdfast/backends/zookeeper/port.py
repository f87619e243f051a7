"""What the zookeeper protocol needs of an ensemble: requests in ZooKeeper's own words, several at a time, in order."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Create(NamedTuple):
    """Make a node, the server puts a number behind its name; it goes when the session does."""

    path: str
    data: bytes
    is_sequential: bool = True


class CreateParent(NamedTuple):
    """Make a node for others to stand below. The server takes a container away once it is empty."""

    path: str
    is_container: bool


class CreatePersistent(NamedTuple):
    """Make a node that stays when the session ends."""

    path: str
    data: bytes


class Delete(NamedTuple):
    """Take a node away; with a version, only if its data are still those."""

    path: str
    version: int = -1


class Children(NamedTuple):
    """The names below a node; a watch tells once when they change, or the node goes."""

    path: str
    watch: bool = False


class Get(NamedTuple):
    """A node's data; a watch tells once when they change, or the node goes."""

    path: str
    watch: bool = False


class Ephemerals(NamedTuple):
    """The paths below this one that are ephemeral nodes of the session. Servers before 3.6 do not know the request."""

    path: str


class Set(NamedTuple):
    """Write a node's data; with a version, only if nobody has since it was that."""

    path: str
    data: bytes
    version: int = -1


class Check(NamedTuple):
    """Nothing is done to this node, but it has to have this version."""

    path: str
    version: int


class Transaction(NamedTuple):
    """All of these in one transaction, or none: the answer is that of the first that is refused."""

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
    owner: int  # the session that it goes with, or 0
    version: int = 0  # how often its data were written since it was made


class Refusal(Enum):
    """Why the servers did not do it: nothing was changed."""

    NO_NODE = "no such node"
    EXISTS = "it is there already"
    CHANGED = "somebody has written it meanwhile"
    NO_RIGHT = "this user lacks the right"
    UNKNOWN_REQUEST = "the server does not know this request"
    OTHER = "refused"


Answer = Created | Node | Refusal | list[str] | None  # None: done, and nothing to tell


class Session(Protocol):
    """One session with the ensemble, over one connection after the other."""

    id: int
    requested: float  # seconds: the timeout that was requested
    timeout: float  # seconds, as negotiated
    is_closed: bool  # the servers have said so, or we have ended it: its nodes are gone, or going
    rolled_back: bool  # it is over because the servers came back with older data than it has seen
    seen: int  # the number of the last transaction that it has seen the servers apply; known when it is over

    def __hash__(self) -> int: ...

    @property
    def connection(self) -> int:
        """Counts its connections; 0 while there is none."""

    @property
    def connected_at(self) -> float:
        """When the request was sent that the leader answered by starting the session's timer anew."""


class ZookeeperPort(Protocol):
    """One ensemble, connected at first use. It has one session at a time for each timeout that is requested.

    Every verb raises BackendUnavailable when nothing was changed, OutcomeUnknown when a request was sent and got no
    answer, and ConfigurationError when the servers do not let us in.
    """

    @property
    def sessions(self) -> Sequence[Session]:
        """Those that are open."""

    async def open(self, timeout: float, *, deadline: float) -> Session:
        """The open session for which this timeout was requested, connected; a new one if there is none."""

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        """Send them all at once and return their answers: the servers carry out a session's requests in order."""

    def send(self, session: Session, request: Request) -> None:
        """Send it, behind all that was asked, and do not wait for its answer."""

    def disconnect(self, session: Session) -> None:
        """Nobody answers on this connection: have it find another server."""

    def close_session(self, session: Session) -> None:
        """End it soon, without waiting: its nodes go with it."""

    def on_events(self, fired: Callable[[Session, str], None], changed: Callable[[Session], None]) -> None:
        """Where it is told that a watch on a path has fired, and that a session or its connection came or went."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background, until it ends or the port is closed."""

    async def close(self, *, keeps_session: bool = False) -> None:
        """End the sessions too; or leave them to the servers' timer, which lets their nodes stay until then."""

    def without_loop(self) -> None:
        """At the end of the process: wait for answers without the loop, which has ended."""

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
