"""What a program asks of a store: one that promises less, or cannot do it, is refused, and those that would do named.

`Client(url, require=…)` is refused at construction by what the URL says; and at an acquire, if a server has meanwhile
said that it promises less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from holdfast.core.names import did_you_mean
from holdfast.errors import ConfigurationError, Unsupported
from holdfast.guarantees import FROM_WEAK_TO_STRONG, Guarantees
from holdfast.primitives import Lacks, Primitive
from holdfast.url import SCHEMES, Scheme, declared, lacking


class Requirement(NamedTuple):
    """The least that a program asks of its store."""

    least: dict[str, Enum]

    @classmethod
    def of(cls, require: object) -> Requirement:
        """Check what a client was given.

        Raises:
            ConfigurationError: no such promise, or no such word for it; says which there are.
        """
        if not isinstance(require, Mapping):
            raise ConfigurationError(
                f'require must be a dict such as {{"exclusion": "durable-authority"}}, not {require!r}'
            )
        return cls({_field(field): _promise(field, value) for field, value in require.items()})

    def shortfalls(self, guarantees: Guarantees) -> list[str]:
        """In words, what falls short; empty if all is at least as strong."""
        found = []
        for field, least in self.least.items():
            has, strengths = getattr(guarantees, field), FROM_WEAK_TO_STRONG[field]
            if strengths.index(has) < strengths.index(least):
                better = " or better" if least is not strengths[-1] else ""
                found.append(f"{field} is {has.value}, not {least.value}{better}")
        return found

    def require(self, url: str, guarantees: Guarantees) -> None:
        """Raise ConfigurationError if they fall short."""
        found = self.shortfalls(guarantees)
        if found:
            others = ", ".join(self.fulfilled_by())
            raise ConfigurationError(
                f"{url} promises less than is required: {'; '.join(found)}; these promise enough: {others}"
            )

    def fulfilled_by(self) -> list[str]:
        """The backends that promise enough before their servers are asked."""
        return _those(lambda scheme: {method: not self.shortfalls(each) for method, each in declared(scheme).items()})


def _field(field: object) -> str:
    if field not in FROM_WEAK_TO_STRONG:
        hint = did_you_mean(str(field), FROM_WEAK_TO_STRONG)
        raise ConfigurationError(
            f"require has the unknown key {field!r}{hint}: its keys are those of client.guarantees"
        )
    return str(field)


def _promise(field: str, value: object) -> Enum:
    strengths = FROM_WEAK_TO_STRONG[_field(field)]
    for promise in strengths:
        if value is promise or value == promise.value:
            return promise
    hint = did_you_mean(str(value), [promise.value for promise in strengths])
    raise ConfigurationError(f"require has {field}={value!r}{hint}")


def require_primitive(primitive: Primitive, url: str, lacks: Lacks) -> None:
    """Refuse what a store cannot do.

    Raises:
        Unsupported: says why, and which stores can.
    """
    why = lacks.get(primitive)
    if why is not None:
        raise Unsupported(backend=url, what=f"{primitive.value} ({why})", others=tuple(those_with(primitive)))


def those_with(primitive: Primitive) -> list[str]:
    """The backends that have it."""
    return _those(lambda scheme: {method: primitive not in lacks for method, lacks in lacking(scheme).items()})


def _those(that: Callable[[Scheme], Mapping[str, bool]]) -> list[str]:
    """Backends, by method, of which something is true; of several schemes of one, the first."""
    found: dict[str, list[str]] = {}
    for name, scheme in SCHEMES.items():
        if scheme.package not in found:
            found[scheme.package] = [
                f"{name}://" if number == 0 else f"{name}://…?method={method}"
                for number, (method, is_true) in enumerate(that(scheme).items())
                if is_true
            ]
    return [each for those in found.values() for each in those]
