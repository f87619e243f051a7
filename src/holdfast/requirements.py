"""The requirements of a program: a store with weaker guarantees or without a primitive is refused, with alternatives.

`Client(url, require=…)` is refused at construction by the guarantees that follow from the URL, and at an acquire if the
server has reported weaker ones since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from holdfast.core.names import did_you_mean
from holdfast.errors import ConfigurationError, Unsupported
from holdfast.guarantees import FROM_WEAK_TO_STRONG, Guarantees, Order
from holdfast.primitives import Lacks, Primitive
from holdfast.url import SCHEMES, Scheme, guarantees_of, lacks_of


class Requirement(NamedTuple):
    """The weakest guarantees that a program accepts."""

    least: dict[str, Enum]

    @classmethod
    def of(cls, require: object) -> Requirement:
        """Check the argument `require`.

        Raises:
            ConfigurationError: an unknown guarantee or value; the message lists the known ones.
        """
        if not isinstance(require, Mapping):
            raise ConfigurationError(
                f'require must be a dict such as {{"exclusion": "durable-authority"}}, not {require!r}'
            )
        return cls({_field(field): _strength(field, value) for field, value in require.items()})

    def shortfalls(self, guarantees: Guarantees) -> list[str]:
        """Descriptions of the guarantees that are too weak; empty if none is."""
        shortfalls = []
        for field, least in self.least.items():
            has, strengths = getattr(guarantees, field), FROM_WEAK_TO_STRONG[field]
            if strengths.index(has) < strengths.index(least):
                better = " or better" if least is not strengths[-1] else ""
                remedy = " (it is with the option local_handover=no)" if has is Order.TURNS else ""
                shortfalls.append(f"{field} is {has.value}, not {least.value}{better}{remedy}")
        return shortfalls

    def require(self, url: str, guarantees: Guarantees) -> None:
        """Raise ConfigurationError if a guarantee is too weak."""
        shortfalls = self.shortfalls(guarantees)
        if shortfalls:
            others = ", ".join(self.fulfilled_by())
            raise ConfigurationError(
                f"{url} promises less than is required: {'; '.join(shortfalls)}; these promise enough: {others}"
            )

    def fulfilled_by(self) -> list[str]:
        """The backends whose guarantees are strong enough, as far as they are known before the first request."""
        return _backends(
            lambda scheme: {method: not self.shortfalls(each) for method, each in guarantees_of(scheme).items()}
        )


def _field(field: object) -> str:
    """The name of a guarantee."""
    if field not in FROM_WEAK_TO_STRONG:
        hint = did_you_mean(str(field), FROM_WEAK_TO_STRONG)
        raise ConfigurationError(
            f"require has the unknown key {field!r}{hint}: its keys are those of client.guarantees"
        )
    return str(field)


def _strength(field: str, value: object) -> Enum:
    """The enum member that is given as itself or by its value."""
    strengths = FROM_WEAK_TO_STRONG[field]
    for strength in strengths:
        if value in (strength, strength.value):
            return strength
    hint = did_you_mean(str(value), [strength.value for strength in strengths])
    raise ConfigurationError(f"require has {field}={value!r}{hint}")


def require_primitive(primitive: Primitive, url: str, lacks: Lacks) -> None:
    """Refuse a primitive that a store lacks.

    Raises:
        Unsupported: the message has the reason and the stores that have it.
    """
    why = lacks.get(primitive)
    if why is not None:
        raise Unsupported(backend=url, what=f"{primitive.value} ({why})", others=tuple(backends_with(primitive)))


def backends_with(primitive: Primitive) -> list[str]:
    """The backends that have this primitive."""
    return _backends(lambda scheme: {method: primitive not in lacks for method, lacks in lacks_of(scheme).items()})


def _backends(has: Callable[[Scheme], Mapping[str, bool]]) -> list[str]:
    """The backends and methods for which `has` is true. Only the first of several schemes of a backend is listed."""
    names: dict[str, list[str]] = {}
    for name, scheme in SCHEMES.items():
        if scheme.package not in names:
            names[scheme.package] = [
                f"{name}://" if number == 0 else f"{name}://…?method={method}"
                for number, (method, is_true) in enumerate(has(scheme).items())
                if is_true
            ]
    return [each for group in names.values() for each in group]
