"""What every guard asks of its arguments, and the one rule."""

from __future__ import annotations

from holdfast.core.names import check_name, shown
from holdfast.errors import ConfigurationError, StaleFence

FENCE_MAX = 2**63 - 1  # what a BIGINT keeps; no backend gives more


def check_fence(fence: object) -> int:
    """Refuse what no lease has: a guard that let 0 or True through would guard nothing.

    Raises:
        ConfigurationError: it is no fence.
    """
    if not isinstance(fence, int) or isinstance(fence, bool) or not 1 <= fence <= FENCE_MAX:
        raise ConfigurationError(
            f"fence must be the `fence` of a lease, a whole number from 1 to {FENCE_MAX}, not {shown(fence)}"
        )
    return fence


def check_resource(resource: object) -> str:
    """A resource is named as a lock is: any text of up to 512 characters.

    Raises:
        ConfigurationError: it is no such name.
    """
    return check_name(resource, "resource")


def refuse_stale(resource: str, fence: int, newest: int) -> None:
    """The rule itself: equal is the same lease writing again.

    Raises:
        StaleFence: `newest` is greater.
    """
    if fence < newest:
        raise StaleFence(resource=resource, fence=fence, newest=newest)
