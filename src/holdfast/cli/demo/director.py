"""Runs the demo: starts the crew, listens to it, has the holder killed, ends it all."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from urllib.parse import quote

import holdfast
from holdfast.cli.demo import views, words
from holdfast.cli.demo.crew import END_MAX, Crew, Setup
from holdfast.cli.demo.record import Record
from holdfast.cli.demo.report import Report, clock
from holdfast.cli.interrupts import Interrupts
from holdfast.guarantees import Scope

START_MAX = 15.0  # seconds that the workers may take to be ready
TAKEOVER_MAX = 8.0  # seconds after the time is up that the kill and the takeover may still take
FRAME = 0.1  # seconds between two pictures
KILL_AFTER = 0.4  # of the time: when the one to be killed is chosen
STAYS_FOR = 0.6  # seconds that it is seen to hold on before it is killed

# A store on this machine sees at once that a process has died. Over a network only the ttl can tell: a short one then.
TTL = {Scope.MACHINE: 30.0, Scope.NETWORK: 3.0}


def run(*, url: str | None, workers: int, seconds: float) -> int:
    """Show it; return the exit status."""
    with Interrupts() as interrupts:
        with _store(url) as place, holdfast.Client(place) as client:
            ttl = TTL.get(client.guarantees.scope)
            if ttl is None:
                raise holdfast.ConfigurationError(f"{client.url} is for one process only: the demo needs several")
            setup = Setup(place, f"holdfast-demo-{secrets.token_hex(4)}", ttl)
            client.inspect(setup.lock)  # or say now that the store cannot be used
            with Crew(workers, setup) as crew:
                play = _Play(client, crew, setup, interrupts, seconds)
                play.run()
        # From here on all workers have ended and the folder is gone.
        if interrupts.received is not None:
            play.view.end([f"stopped by {interrupts.received.name}; all workers have ended"])
            return interrupts.status
        play.view.end(words.summary(play.record, clock() - play.started, ttl))
        return 1 if play.record.problems() else 0


class _Play:
    def __init__(
        self, client: holdfast.Client, crew: Crew, setup: Setup, interrupts: Interrupts, seconds: float
    ) -> None:
        self.record = Record(crew.pids)
        self.view = views.choose(len(crew.pids))
        self.started = clock()
        self._client = client
        self._crew = crew
        self._setup = setup
        self._interrupts = interrupts
        self._seconds = seconds
        self._victim: int | None = None
        self._kill_at: float | None = None

    def run(self) -> None:
        self.view.begin(words.heading(len(self._crew.pids), self._setup.ttl), self._client.url, self._crew.pids)
        self._get_ready()
        self.started = clock()
        self._crew.tell_all("go")
        while not self._is_over():
            self._listen(FRAME)
            self._direct()
        self._crew.tell_all("end")
        deadline = clock() + END_MAX
        while not (self._crew.is_gone or self._interrupts.received) and clock() < deadline:
            self._listen(FRAME)
        if not self._crew.is_gone:
            self.record.trouble.append(f"a worker did not end within {END_MAX:g} s")

    def _get_ready(self) -> None:
        deadline = clock() + START_MAX
        while not (self.record.all_ready or self._interrupts.received):
            self._listen(FRAME)
            if self.record.trouble:
                raise holdfast.HoldfastError(self.record.trouble[0])
            if clock() > deadline:
                raise holdfast.HoldfastError(f"the workers were not ready within {START_MAX:g} s")

    def _is_over(self) -> bool:
        if self._interrupts.received or self._crew.is_gone:
            return True
        over_by = clock() - self.started - self._seconds
        return over_by >= (0 if self.record.takeover else TAKEOVER_MAX)

    def _direct(self) -> None:
        """Have the next holder hold on, then kill it."""
        now = clock()
        if self._victim is None and now - self.started >= KILL_AFTER * self._seconds:
            line = self._in_line() or self.record.waiting()  # not every store keeps a queue
            if line:
                self._victim = line[0]
                self._crew.tell(self._victim, "stay")
        if self._victim is not None and self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            killed_at = clock()
            self._crew.kill(self._victim)
            self.record.add_kill(self._victim, killed_at)
            self._tell(killed_at, words.killed(self._victim, self._crew.pids[self._victim]), views.RED)

    def _listen(self, wait_max: float) -> None:
        for report in self._crew.reports(wait_max):
            had_takeover = self.record.takeover is not None
            self.record.add(report)
            self._comment(report, is_takeover=not had_takeover and self.record.takeover is not None)
        if self.view.wants_frames:
            self.view.draw(
                views.Scene(
                    record=self.record,
                    pids=self._crew.pids,
                    in_line=self._in_line(),
                    now=clock(),
                    started=self.started,
                    seconds=self._seconds,
                    ttl=self._setup.ttl,
                )
            )

    def _comment(self, report: Report, *, is_takeover: bool) -> None:
        if report.what == "got":
            turn = self.record.turns[-1]
            if is_takeover:
                self._tell(report.at, words.took_over(self.record, turn, self._setup.ttl), views.GREEN)
            else:
                self._tell(report.at, words.got(self.record, turn, self._in_line(report.fence)))
        elif report.what == "stays":
            self._kill_at = report.at + STAYS_FOR
            self._tell(report.at, words.stays(report.worker), views.YELLOW)
        elif report.text:
            self._tell(report.at, self.record.trouble[-1], views.RED)

    def _tell(self, at: float, sentence: str, color: int = 0) -> None:
        self.view.tell(at - self.started, sentence, color=color)

    def _in_line(self, fence: int | None = None) -> list[int]:
        """Who waits, in order, says the store; nobody if the lease with this fence is over already."""
        info = self._client.inspect(self._setup.lock)
        if fence is not None and all(holder.fence != fence for holder in info.holders):
            return []
        return [waiter.meta["worker"] for waiter in info.waiters]


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        yield "sqlite://" + quote(os.path.join(folder, "locks.db"))
