"""Select contenders, measures and numbers. This module runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.contender import Arena, Contender
from benchmarks.measure import Effort, Measure, Setting


@dataclass(frozen=True)
class Case:
    """One row of one table."""

    measure: Measure
    setting: Setting
    contender: Contender

    @property
    def name(self) -> str:
        """The name that `--only` is matched against: contended/machine/8-hold-2ms/filelock."""
        return f"{self.measure.name}/{self.contender.arena.slug}/{self.setting.slug}/{self.contender.slug}"

    @property
    def problem(self) -> str | None:
        """Why it is not run, or None."""
        if cannot := self.measure.cannot(self.contender, self.setting):
            return cannot
        return "not installed" if self.contender.version is None else None

    def matches(self, pattern: str) -> bool:
        """Whether the name, or a part of it between slashes, begins with the pattern (* and ? as in a shell)."""
        return any(fnmatchcase(text, f"{pattern}*") for text in (self.name, *self.name.split("/")))


@dataclass(frozen=True)
class Group:
    """One table: contenders that are measured in the same rounds and compared with each other."""

    measure: Measure
    arena: Arena | None  # None: of all arenas
    setting: Setting
    cases: tuple[Case, ...]
    rounds: int

    @property
    def slug(self) -> str:
        arena = () if self.arena is None else (self.arena.slug,)
        return "-".join((self.measure.name, *arena, self.setting.slug))

    @property
    def baseline(self) -> Case | None:
        """The contender that the others are compared with."""
        return next((case for case in self.cases if self.measure.name in case.contender.baseline_of), None)


def make_plan(
    measures: Sequence[Measure],
    contenders: Sequence[Contender],
    effort: Effort,
    only: Sequence[str] = (),
    *,
    whole_tables: bool = False,
) -> list[Group]:
    """Return all tables that have contenders, for the cases that match a pattern, or for all cases.

    With `whole_tables`, a table has all of its cases if one of them matches.
    """
    groups = []
    for measure in measures:
        arenas: list[Arena | None] = [*Arena] if measure.by_arena else [None]
        for arena in arenas:
            for setting in measure.settings(effort):
                cases = tuple(
                    case
                    for contender in contenders
                    if arena is None or contender.arena is arena
                    if not contender.only_in or measure.name in contender.only_in
                    for case in [Case(measure, setting, contender)]
                )
                matching = tuple(case for case in cases if not only or any(case.matches(pattern) for pattern in only))
                if not (whole_tables and matching):
                    cases = matching
                if any(measure.cannot(case.contender, setting) is None for case in cases):
                    groups.append(Group(measure, arena, setting, cases, measure.rounds(effort)))
    return groups
