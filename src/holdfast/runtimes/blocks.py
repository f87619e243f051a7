"""Which lease a `with` block entered with.

A `with` statement loads `__exit__` before it calls `__enter__` and calls the loaded function when the block is left
(Python Language Reference, "The with statement"); contextlib.ExitStack does the same. So `__exit__` is a descriptor
here: each block loads an exit function of its own, and `__enter__` stores the lease in it. The block then releases
exactly the lease that it entered with, from any thread or task and in any order.

A call by hand, `lock.__exit__(None, None, None)`, loads `__exit__` only at the end and cannot be matched to one
`__enter__`. It follows the rule of `lock.release()`: the lease that this thread or task took last through this object,
or NotHeld.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from holdfast.errors import HoldfastError, UsageError

Raised = type[BaseException] | None
B = TypeVar("B")


class Block:
    """The exit function of one `with` block."""

    # Set by ExitOfBlock: a method would be a further frame in every block.
    __slots__ = ("_lock", "body", "lease")

    _lock: Any  # None if it was loaded from the class, as ExitStack does: the lock is then the first argument
    lease: Any
    body: Any  # of an `async with`, cancelled at a loss; None with on_lost="event"

    def _last(self, arguments: tuple[Any, ...]) -> Any:
        """The lease that a call by hand leaves."""
        lock = arguments[0] if self._lock is None else self._lock
        return lock._last_entered()


class ThreadBlock(Block):
    """The exit function of a `with` block of threads."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None, /) -> None: ...

    else:

        def __call__(self, *arguments: Any) -> Any:
            # There is no call before the `try`, so CPython raises no KeyboardInterrupt between the entry of this
            # function and the `try`. One at the entry itself cannot be handled here.
            lease, self.lease = self.lease, None
            try:
                if lease is None:
                    lease = self._last(arguments)
                lease._exit_block(arguments[-2])
            except HoldfastError:
                raise
            except BaseException:
                if lease is not None:
                    lease._interrupted_exit()
                raise


class TaskBlock(Block):
    """The exit function of an `async with` block."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self, kind: Raised, error: BaseException | None, trace: TracebackType | None, /
        ) -> Coroutine[Any, Any, None]: ...

    else:

        def __call__(self, *arguments: Any) -> Any:
            (lease, body), self.lease, self.body = (self.lease, self.body), None, None
            if lease is None:
                lease = self._last(arguments)
            return lease._exit_block(body, arguments[-2])


class ExitOfBlock(Generic[B]):
    """`__exit__` or `__aexit__`: a new function for each block that loads it."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type[B]) -> None:
        self._kind: Any = kind

    def __get__(self, lock: Any, caller: type[Any]) -> B:
        entering.block = block = self._kind()
        block._lock, block.lease, block.body = lock, None, None
        result: B = block
        return result


class ForThreads:
    """A base of the objects that `with` accepts: `async with` on one is an error with advice.

    Type checkers do not see the methods, so that they report the mistake too.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __aenter__(self, *_: object) -> Any:
            raise UsageError(
                f"`async with` is for asyncio, and this {type(self).__name__} is for threads: use `with`, or "
                "holdfast.AsyncClient and its locks"
            )

        __aexit__ = __aenter__  # `async with` loads both before it calls the first


class ThreadBlocks(ForThreads):
    """`with` on a lease: the part that Lease and LeaseAll share."""

    __slots__ = ()

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._exit_block(error)
        except HoldfastError:
            raise
        except BaseException:
            self._interrupted_exit()
            raise

    if TYPE_CHECKING:

        def check(self) -> None: ...
        def _exit_block(self, error: BaseException | None) -> None: ...
        def _interrupted_exit(self) -> None: ...


class ForTasks:
    """A base of the objects that `async with` accepts: `with` on one is an error with advice."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self, *_: object) -> Any:
            raise UsageError(
                f"`with` is for threads, and this {type(self).__name__} is for asyncio: use `async with`, or "
                "holdfast.Client and its locks"
            )

        __exit__ = __enter__  # `with` loads both before it calls the first


class _Entering(threading.local):
    block: Any = None  # the exit function that this thread loaded last, until an `__enter__` takes it


entering = _Entering()


def entered_block(lock: object) -> Any:
    """The block that is being entered; None if `__enter__` is called by hand. It has to be the first step there."""
    block, entering.block = entering.block, None
    return block if block is not None and (block._lock is lock or block._lock is None) else None
