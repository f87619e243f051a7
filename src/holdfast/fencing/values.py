"""The checks of arguments that all guards share, and the rule for fences."""

from __future__ import annotations

import re

from holdfast.core.names import check_name, shown
from holdfast.errors import ConfigurationError, StaleFence

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
FENCE_MAX = 2**63 - 1  # the maximum of a BIGINT; no backend grants a greater fence


def check_fence(fence: object) -> int:
    """Reject values that are not the fence of a lease, such as 0 or True, because they would not protect anything.

    Raises:
        ConfigurationError: it is not a fence.
    """
    if not isinstance(fence, int) or isinstance(fence, bool) or not 1 <= fence <= FENCE_MAX:
        raise ConfigurationError(
            f"fence must be the `fence` of a lease, a whole number from 1 to {FENCE_MAX}, not {shown(fence)}"
        )
    return fence


def check_resource(resource: object) -> str:
    """Check the name of a resource. It follows the rules for lock names: any text of up to 512 characters.

    Raises:
        ConfigurationError: it is not a valid name.
    """
    return check_name(resource, "resource")


def check_identifier(argument: str, name: object) -> None:
    """Check the name of a table or column, which becomes a part of a statement.

    Raises:
        ConfigurationError: it is not a plain name.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(f"{argument} must be a plain SQL name, with its schema or without, not {name!r}")


def refuse_stale(resource: str, fence: int, newest: int) -> None:
    """Apply the rule for fences. An equal fence passes: the same lease writes again.

    Raises:
        StaleFence: `newest` is greater.
    """
    if fence < newest:
        raise StaleFence(resource=resource, fence=fence, newest=newest)
