"""Shared by the databases in which holdfast has tables: a call that only reads neither creates nor upgrades them."""

from __future__ import annotations

from holdfast.core.ports import StoreMissing
from holdfast.errors import BackendUnavailable


def check_version(url: str, found: int, needed: int, *, is_incomplete: bool) -> None:
    """Raise unless the tables of version `found` (0: there are none) can be read by code that knows version `needed`.

    Raises:
        StoreMissing: there are no tables, so there are no locks.
        BackendUnavailable: they are of an older version, or some of them are missing: there may be locks.
    """
    if not found:
        problem = "there are no tables of holdfast yet: they are created when a lock is taken, or by `holdfast init`"
        raise StoreMissing(backend=url, problem=problem)
    if found < needed:
        problem = f"the tables are of an older holdfast (version {found}, this one knows {needed})"
    elif is_incomplete:
        problem = "some of the tables are missing"
    else:
        return
    fix = "they are brought up to date when a lock is taken, or by `holdfast init`, not by a call that only reads"
    raise BackendUnavailable(backend=url, problem=f"{problem}: {fix}")
