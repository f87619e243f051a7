"""How the demo is shown: plain lines for a pipe or a file, a table drawn in place for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.cli.demo import words
from holdfast.cli.demo.record import Record, Turn
from holdfast.cli.terminal import WIDTH_MAX, Display, Terminal

COLUMNS_MIN = 60
WINDOW = 8.0  # seconds that the bar looks back
_TOLD = 4  # sentences that stay in sight
_OTHER_LINES = _TOLD + 7  # lines of a picture that are not a worker's
_KILL = -1  # in the bar: here a holder was killed

RED, GREEN, YELLOW = 31, 32, 33
_BOLD, _DIM, _REVERSE = 1, 2, 7
_WORKER_COLORS = (36, 33, 35, 32, 34, 96, 93, 95, 92)


class Scene(NamedTuple):
    """All that a view needs to know at one moment."""

    record: Record
    pids: dict[int, int]
    in_line: Sequence[int]  # says the store
    now: float
    started: float
    seconds: float
    ttl: float


class View(Protocol):
    """One way to show it."""

    wants_frames: bool  # otherwise draw() shows nothing, and nobody need look at the store for it

    def begin(self, heading: str, url: str, pids: dict[int, int]) -> None: ...
    def tell(self, at: float, sentence: str, *, color: int = 0) -> None: ...
    def draw(self, scene: Scene) -> None: ...
    def end(self, lines: Sequence[str]) -> None: ...


def choose(workers: int) -> View:
    """The live table, if there is a terminal with room for it."""
    terminal = Terminal.of(sys.stdout)
    has_room = terminal.columns >= COLUMNS_MIN and terminal.lines > workers + _OTHER_LINES
    if terminal.can_move_cursor and has_room:
        return Live(terminal)
    return Plain()


class Plain:
    """One line for each thing that happens; no escape codes."""

    wants_frames = False

    def begin(self, heading: str, url: str, pids: dict[int, int]) -> None:
        _write([heading, f"store: {url}", *words.FENCE, ""])
        _write([f"worker {number} is process {pid}" for number, pid in pids.items()])

    def tell(self, at: float, sentence: str, *, color: int = 0) -> None:
        _write([f"{at:7.3f} s  {sentence}"])

    def draw(self, scene: Scene) -> None:
        return

    def end(self, lines: Sequence[str]) -> None:
        _write(["", *lines])


class Live:
    """A table drawn again and again in the same place."""

    wants_frames = True

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._told: list[tuple[str, int]] = []  # with their colours
        self._display = Display(sys.stdout)

    def begin(self, heading: str, url: str, pids: dict[int, int]) -> None:
        _write([self._paint(heading[: self._width], _BOLD), f"store: {url}"[: self._width]])
        _write([line[: self._width] for line in words.FENCE])

    def tell(self, at: float, sentence: str, *, color: int = 0) -> None:
        self._told = [*self._told, (f"{at:7.3f} s  {sentence}", color)][-_TOLD:]

    def draw(self, scene: Scene) -> None:
        self._terminal = Terminal.of(sys.stdout)
        lines = [
            "",
            *self._table(scene),
            self._first_fence(scene),
            "",
            self._bar(scene),
            self._scale(scene),
            "",
            *(self._paint(line[: self._width], color) for line, color in self._told),
            *[""] * (_TOLD - len(self._told)),
        ]
        self._display.draw(lines)

    def end(self, lines: Sequence[str]) -> None:
        self._display.end(["", *lines])

    @property
    def _width(self) -> int:
        return min(self._terminal.columns, WIDTH_MAX) - 1

    def _paint(self, text: str, *codes: int) -> str:
        return self._terminal.paint(text, *codes)

    def _table(self, scene: Scene) -> list[str]:
        header = f"  {'worker':<7}{'pid':>9}  {'state':<14}{'for':>8}{'fence':>14}{'turns':>8}{'longest wait':>15}"
        return [self._paint(header[: self._width], _DIM), *(self._row(scene, number) for number in scene.pids)]

    def _row(self, scene: Scene, number: int) -> str:
        worker = scene.record.workers[number]
        state, codes = self._state(scene, number)
        lasts = f"{scene.now - worker.since:.1f} s" if worker.since else ""
        turns = worker.turns or ""
        wait = f"{worker.wait_max:.3f} s" if worker.turns else ""
        fence = f"{worker.fence - scene.record.first_fence:+d}" if worker.turns else ""
        name = self._paint(f" {number} ", _REVERSE, _WORKER_COLORS[number - 1])
        before = f"{scene.pids[number]:>9}  "
        after = f"{lasts:>8}{fence:>14}{turns:>8}{wait:>15}"
        return f"  {name}    {before}{self._paint(f'{state:<14}', *codes)}{after[: self._width - 34]}"

    def _first_fence(self, scene: Scene) -> str:
        first = scene.record.first_fence
        return self._paint(f"{f'from {first}':>56}", _DIM) if first else ""

    def _state(self, scene: Scene, number: int) -> tuple[str, tuple[int, ...]]:
        match scene.record.workers[number].state:
            case "holds":
                return "HOLDS", (_BOLD, GREEN)
            case "waiting":
                place = f" #{scene.in_line.index(number) + 1}" if number in scene.in_line else ""
                return f"waiting{place}", (YELLOW,)
            case "killed":
                return "killed", (_BOLD, RED)
            case other:
                return other, (_DIM,)

    def _bar(self, scene: Scene) -> str:
        cells = timeline(scene.record.turns, scene.record.killed, scene.now, self._width - 4)
        gap = "·" if self._terminal.has_unicode else "."
        shown = []
        for cell in cells:
            if cell is None:
                shown.append(self._paint(gap, _DIM))
            elif cell == _KILL:
                shown.append(self._paint("X", _REVERSE, _BOLD, RED))
            else:
                shown.append(self._paint(str(cell), _REVERSE, _WORKER_COLORS[cell - 1]))
        return "  " + "".join(shown)

    def _scale(self, scene: Scene) -> str:
        left, right = f"who held it, the last {WINDOW:g} s", "now"
        elapsed = f"{scene.now - scene.started:.1f} of {scene.seconds:g} s"
        middle = self._width - 4 - len(left) - len(right)
        return "  " + self._paint(f"{left}{elapsed:^{middle}}{right}", _DIM)


def timeline(turns: Sequence[Turn], kill: tuple[int, float] | None, now: float, cells: int) -> list[int | None]:
    """Who held it for the most of each of `cells` equal parts of the last seconds."""
    step = WINDOW / cells
    last = int(now / step)  # on a fixed grid: what is drawn moves left, but does not change
    found: list[int | None] = []
    for cell in range(last - cells + 1, last + 1):
        start, end = cell * step, (cell + 1) * step
        if kill is not None and start <= kill[1] < end:
            found.append(_KILL)
            continue
        shares = [
            (min(end, now if turn.end is None else turn.end) - max(start, turn.start), turn.worker) for turn in turns
        ]
        share, worker = max(shares, default=(0.0, 0))
        found.append(worker if share > 0 else None)
    return found


def _write(lines: Sequence[str]) -> None:
    print(*lines, sep="\n", flush=True)
