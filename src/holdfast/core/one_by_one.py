"""Several locks one after the other, for stores that cannot handle several in one step."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.core.tickets import Claim, Granted, Waiting

T = TypeVar("T")


class OneByOne:
    """A mixin for a backend whose store acquires one lock at a time."""

    async def try_acquire_all(self: Backend, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        return [await self.try_acquire(claims[0], queue=False, deadline=deadline)]


async def result_or_error(work: Awaitable[T]) -> T | BackendError:
    """The answer for one lock of several: an error must not stop the others."""
    try:
        return await work
    except BackendError as error:
        return error
