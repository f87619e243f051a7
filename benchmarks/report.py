"""The results as tables, plots and JSON, for the terminal and for a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap

from benchmarks import figures, plots
from benchmarks.claims import claims_table, judge
from benchmarks.contender import BEFORE, Arena, Contender
from benchmarks.measure import Column, Effort, Panel
from benchmarks.page import SUMMARY
from benchmarks.results import BOUNDS_ROUNDS, Outcome, Record
from benchmarks.summary import summary_plot
from benchmarks.table import WIDTH, Row, Table, number


class Report:
    """One run."""

    def __init__(
        self, machine: dict[str, str], effort: Effort, contenders: Sequence[Contender], outcomes: Sequence[Outcome]
    ) -> None:
        self._machine = machine
        self._effort = effort
        self._contenders = contenders
        self._outcomes = outcomes
        self._claims = judge(outcomes)

    def to_text(self, *, color: bool = False) -> str:
        """For a terminal."""
        facts = [f"{name + ':':13}{fact}" for name, fact in self._machine.items()]
        parts = ["\n".join(line for fact in facts for line in wrap(fact, WIDTH, subsequent_indent=" " * 13)) + "\n"]
        measure = None
        for outcome in self._outcomes:
            if outcome.group.measure is not measure:
                measure = outcome.group.measure
                heading = Table(f"== {measure.title}", [""], notes=[measure.explains])
                parts.append(_paragraph(heading))
            parts.append(outcome_table(outcome).to_text(color=color))
        if self._claims:
            parts.append(claims_table(self._claims).to_text(color=color))
        return "\n".join(parts)

    def to_markdown(self) -> str:
        """For the documentation, by store, with links to the plots."""
        parts = ["# Results\n\nMade by `make bench ARGS=--publish`; [how to read them](../benchmarks.md).\n"]
        parts.append("\n".join(f"- {name}: {fact}" for name, fact in self._machine.items()) + "\n")
        drawn = self.to_plots()
        if SUMMARY in drawn:
            parts.append(f"![Every store]({SUMMARY})\n")
        parts.append("## Measures\n")
        measures = {outcome.group.measure.name: outcome.group.measure for outcome in self._outcomes}
        parts += [f"**{measure.title}.** {measure.explains}\n" for measure in measures.values()]
        parts.append(contender_table(self._contenders).to_markdown())
        for arena in [*Arena, None]:
            outcomes = [outcome for outcome in self._outcomes if outcome.group.arena is arena]
            if outcomes:
                parts.append(f"## {_heading(arena)}\n")
            for outcome in outcomes:
                parts.append(outcome_table(outcome, with_measure=True).to_markdown())
                for name in _plot_names(outcome):
                    if name in drawn:
                        parts.append(f"![{_plot_title(outcome)}]({name})\n")
                        del drawn[name]  # a plot of several tables is included once
        if self._claims:
            parts.append("## What is claimed\n\nOf ourselves, by this run.\n")
            parts.append(claims_table(self._claims).to_markdown())
        return "\n".join(parts)

    def to_json(self) -> str:
        """All figures of all rounds, times in seconds."""
        tables = [
            {
                "measure": outcome.group.measure.name,
                "arena": outcome.group.arena,
                "setting": outcome.group.setting.slug,
                "numbers": dict(outcome.group.setting.numbers),
                "baseline": outcome.group.baseline.contender.name if outcome.group.baseline else None,
                "run": outcome.run,
                "rows": [_row_data(outcome, record) for record in outcome.records],
            }
            for outcome in self._outcomes
        ]
        claims = [{**asdict(claim), "holds": claim.holds} for claim in self._claims]
        data = {"machine": self._machine, "effort": self._effort._asdict(), "tables": tables, "claims": claims}
        return json.dumps(data, indent=1) + "\n"

    def to_plots(self) -> dict[str, str]:
        """SVG texts by file name."""
        drawn: dict[str, str] = {}
        for outcome in self._outcomes:
            names = _plot_names(outcome)
            for name, panel in zip(names, outcome.group.measure.lines, strict=False):
                alike = [outcome for outcome in self._outcomes if name in _plot_names(outcome)]
                if name not in drawn and any(
                    record.values(panel.dot) for alike_outcome in alike for record in alike_outcome.records
                ):
                    drawn[name] = _draw_lines(alike, panel)
            if not outcome.group.measure.lines and any(record.good for record in outcome.records):
                drawn[names[0]] = _draw_dots(outcome)
        if summary := summary_plot(self._outcomes):
            drawn[SUMMARY] = summary
        return drawn

    def write(self, folder: str) -> None:
        """Write results.txt, results.md, results.json and the plots, and remove those of an earlier run."""
        os.makedirs(folder, exist_ok=True)
        for old in os.listdir(folder):
            if old.endswith(".svg"):
                os.unlink(os.path.join(folder, old))
        files = {
            "results.txt": self.to_text(),
            "results.md": self.to_markdown(),
            "results.json": self.to_json(),
            **self.to_plots(),
        }
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)


def outcome_table(outcome: Outcome, *, with_measure: bool = False) -> Table:
    """One table with a row per contender."""
    group, baseline = outcome.group, outcome.baseline
    measure, columns = group.measure, _columns(outcome)
    headings = ["", *(["who waits"] if measure.layout else []), *(column.heading for column in columns)]
    if measure.ratio_of is not None:
        headings += ["±", f"×\n{baseline.case.contender.name}" if baseline else "×\n(no baseline)"]
        if group.rounds >= BOUNDS_ROUNDS and baseline:
            headings.append("× from\nto (95 %)")
    earlier = _earlier(outcome)
    if earlier:
        headings += ["×\nbefore", "× from\nto (95 %)"][: 2 if group.rounds >= BOUNDS_ROUNDS else 1]
    title = f"{measure.title.partition(':')[0]}: {_title(outcome)}" if with_measure else _title(outcome)
    table = Table(title, headings, words=2 if measure.layout else 1)
    apart: dict[str, list[str]] = {}
    for record in outcome.records:
        contender = record.case.contender
        if record.problem is not None and record.problem == measure.cannot(contender, group.setting):
            apart.setdefault(record.problem, []).append(contender.name)
            continue
        row = Row([contender.name], mark="ours" if contender.ours else None)
        if record.is_broken:
            row.mark = "broken"
            row.remark = f"BROKEN: {max(record.values('overlaps')):,.0f} turns overlapped in one round"
        elif not record.good:
            row.remark = f"failed: {record.problem}" if record.rounds else record.problem
        else:
            row.cells += _cells(record, columns, baseline, group.rounds)
            if earlier:
                row.cells += _ratio_cells(record, earlier.get(contender.name), group.rounds)
            if record.problem is not None:
                failed = len(record.rounds) - len(record.good)
                table.notes.append(
                    f"{contender.name}: {failed} of {len(record.rounds)} rounds failed: {record.problem}"
                )
        table.rows.append(row)
    table.notes += [f"- {reason}: {', '.join(names)}" for reason, names in apart.items()]
    if outcome.run:
        table.notes.append(f"- of another run: {outcome.run}")
    return table


def contender_table(contenders: Sequence[Contender]) -> Table:
    """The table of contenders and their properties, which the figures do not compare."""
    headings = ["", "version", "keeps out", "waits", "order", "ttl, renewed", "fence", "writes"]
    table = Table("Who takes part", headings, words=len(headings))
    for contender in contenders:
        version = "with Python" if contender.version == "" else contender.version or "not installed"
        offers = ["yes" if has else "no" for has in (contender.has_ttl, contender.has_fence)]
        cells = [
            contender.name,
            version,
            contender.arena,
            contender.waits or "cannot",
            contender.order,
            *offers,
            contender.writes,
        ]
        table.rows.append(Row(cells, mark="ours" if contender.ours else None))
    return table


def _columns(outcome: Outcome) -> list[Column]:
    """Return the columns with figures, or all columns if there are none."""
    columns = outcome.group.measure.columns
    return [column for column in columns if any(record.values(column.key) for record in outcome.records)] or list(
        columns
    )


def _cells(record: Record, columns: Sequence[Column], baseline: Record | None, rounds: int) -> list[str]:
    measure, cells = record.case.measure, []
    if measure.layout:
        cells.append(measure.layout(record.case.contender, record.case.setting))
    cells += [number(record.value(column), plain=column.plain) for column in columns]
    if measure.ratio_of is not None:
        values = record.values(measure.ratio_of)
        cells.append(f"{figures.spread(values):.0%}" if len(values) > 1 else "-")
        cells += _ratio_cells(record, baseline, rounds) if baseline else ["-"]
    return cells


def _ratio_cells(record: Record, baseline: Record | None, rounds: int) -> list[str]:
    """The ratio to another contender and, with enough rounds, its bounds."""
    assert record.case.measure.ratio_of is not None
    cells = [number(record.ratio(baseline, record.case.measure.ratio_of)) if baseline else "-"]
    if rounds >= BOUNDS_ROUNDS:
        bounds = record.ratio_bounds(baseline, record.case.measure.ratio_of) if baseline else None
        cells.append(f"{number(bounds[0])}-{number(bounds[1])}" if bounds else "-")
    return cells


def _earlier(outcome: Outcome) -> dict[str, Record]:
    """The records of the version that --before names, by the name of the same contender of this version."""
    if outcome.group.measure.ratio_of is None:
        return {}
    named = {record.case.contender.name: record for record in outcome.records if record.good}
    return {name.removesuffix(BEFORE): record for name, record in named.items() if name.endswith(BEFORE)}


def _title(outcome: Outcome) -> str:
    group = outcome.group
    where = f"{group.arena}: " if group.arena else ""
    cores = sorted(set(outcome.cores.values()))
    on = " or ".join(map(str, cores)) + (" core" if cores == [1] else " cores")
    rounds = f"{group.rounds} rounds" if group.rounds > 1 else "1 round"
    return f"{where}{group.setting.title} ({on}, {rounds})"


def _heading(arena: Arena | None) -> str:
    return "All stores" if arena is None else f"{arena[0].upper()}{arena[1:]}"


def _paragraph(heading: Table) -> str:
    """A title and a note without a table."""
    first, *rest = heading.to_text().splitlines()
    return "\n".join([first, *(line for line in rest if line.startswith("  "))]) + "\n"


def _row_data(outcome: Outcome, record: Record) -> dict[str, object]:
    measure, baseline = outcome.group.measure, outcome.baseline
    ratio = record.ratio(baseline, measure.ratio_of) if baseline and measure.ratio_of else None
    bounds = record.ratio_bounds(baseline, measure.ratio_of) if baseline and measure.ratio_of else None
    return {
        "contender": record.case.contender.name,
        "ours": record.case.contender.ours,
        "cores": outcome.cores[record.case.contender.name],
        "problem": record.problem,
        "broken": record.is_broken,
        "ratio": ratio,
        "ratio_bounds": bounds,
        "rounds": record.rounds,
    }


def _plot_names(outcome: Outcome) -> list[str]:
    """Return the files of the plots of this table: one for all panels, or one per panel of lines."""
    group = outcome.group
    if not group.measure.lines:
        return [f"{group.slug}.svg"]
    name = "-".join((group.measure.name, *([group.arena.slug] if group.arena else [])))
    others = [f"{name}-{panel.dot.replace('_', '-')}.svg" for panel in group.measure.lines[1:]]
    return [f"{name}.svg", *others]


def _plot_title(outcome: Outcome) -> str:
    group = outcome.group
    where = f"{group.arena}, " if group.arena else ""
    setting = "" if group.measure.lines else group.setting.title
    return f"{group.measure.title.partition(':')[0]}: {where}{setting}".rstrip(", ")


def _kind(record: Record) -> str:
    if record.is_broken:
        return "bad"
    return "ours" if record.case.contender.ours else "peer"


def _draw_dots(outcome: Outcome) -> str:
    baseline = outcome.baseline
    panels = []
    for panel in outcome.group.measure.panels:
        marks = [_mark(record, panel) for record in outcome.records if record.good]
        base = panel.scale * figures.median(baseline.values(panel.dot)) if baseline else None
        panels.append(plots.Dots(panel.title, marks, base))
    return plots.dots(_plot_title(outcome), panels)


def _mark(record: Record, panel: Panel) -> plots.Mark:
    columns = {column.key: column for column in record.case.measure.columns}
    values = [panel.scale * value for value in record.values(panel.dot)]
    return plots.Mark(
        label=record.case.contender.name,
        kind=_kind(record),
        dot=figures.median(values),
        ring=record.value(columns[panel.ring]) if panel.ring else None,
        low=min(values),
        high=max(values),
    )


def _draw_lines(outcomes: Sequence[Outcome], panel: Panel) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    kinds: dict[str, str] = {}
    for outcome in outcomes:
        across = next(iter(outcome.group.setting.numbers.values()))
        for record in outcome.records:
            if record.values(panel.dot):
                name = record.case.contender.name
                kinds[name] = "bad" if "bad" in (_kind(record), kinds.get(name)) else _kind(record)
                points.setdefault(name, []).append((across, panel.scale * figures.median(record.values(panel.dot))))
    series = [plots.Line(name, kinds[name], points_of_name) for name, points_of_name in points.items()]
    return plots.lines(_plot_title(outcomes[0]), panel.title, series)
