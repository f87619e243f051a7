"""Who makes the faults happen: decides every second, for every process and for the server, until the world heals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.checking import history as h

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

TICK = 1.0


class Nemesis:
    """One for every run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._choices = simulation.choices
        self._faults = simulation.faults
        self._server = simulation.server
        self._add = simulation.recorder.add
        self._happened = simulation.recorder.happened
        self._is_at_work = True
        self._cut: set[str] = set()
        self._backed_up = False
        self._world.at(TICK, self._tick)

    def stop(self) -> None:
        """Everything is made well again, for good."""
        self._is_at_work = False
        for name in list(self._simulation.members):
            self._go_on(name)
            self._mend(name)
            self._restart(name)
        self._server_goes_on()

    def _tick(self) -> None:
        if not self._is_at_work:
            return
        self._world.at(self._world.now + TICK, self._tick)
        choices, faults = self._choices, self._faults
        for name in list(self._simulation.members):
            if choices.chance(faults.pause):
                self._pause(name)
            if choices.chance(faults.crash):
                self._crash(name)
            if choices.chance(faults.cancel) and self._simulation.members[name].cancel():
                self._happened["cancel"] += 1
            if choices.chance(faults.cut):
                self._cut_off(name)
        if choices.chance(faults.stall):
            self._stall()
        if choices.chance(faults.lose_data):
            self._happened["lose_data"] += 1
            self._add(h.Forgot(self._world.now, "data", detail="all of it"))
            self._server.lose_data()
        if faults.old_data:
            if not self._backed_up or choices.chance(0.2):
                self._server.back_up()
                self._backed_up = True
            elif choices.chance(faults.old_data):
                self._happened["old_data"] += 1
                self._add(h.Forgot(self._world.now, "data", detail="an old copy is back"))
                self._server.restore_data()
        if choices.chance(faults.step_clock):
            self._happened["step_clock"] += 1
            self._add(h.Forgot(self._world.now, "clock"))
            self._server.wall_step -= choices.between(0.001, 3600.0)
        if choices.chance(faults.break_lock) and self._simulation.break_something():
            self._happened["break_lock"] += 1

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────

    def _pause(self, name: str) -> None:
        process = self._simulation.members[name].process
        if process.is_dead or process.is_paused:
            return
        process.pause()
        self._happened["pause"] += 1
        self._add(h.Paused(self._world.now, name))
        self._world.at(self._world.now + self._choices.between(0.01, self._faults.pause_max), self._go_on, name)

    def _go_on(self, name: str) -> None:
        process = self._simulation.members[name].process
        if process.is_paused:
            self._add(h.Resumed(self._world.now, name))
            process.go_on()

    def _crash(self, name: str) -> None:
        member = self._simulation.members[name]
        if member.process.is_dead:
            return
        self._happened["crash"] += 1
        self._add(h.Crashed(self._world.now, name))
        member.crash()
        self._server.process_died(member.process)
        self._world.at(self._world.now + self._choices.between(0.0, self._faults.restart_max), self._restart, name)

    def _restart(self, name: str) -> None:
        member = self._simulation.members[name]
        if member.process.is_dead:
            self._add(h.Restarted(self._world.now, name))
            self._simulation.start(name, member.worker.rounds_left)
            if name in self._cut:
                self._cut_off(name)

    # ── the network ──────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_off(self, name: str) -> None:
        link = self._simulation.members[name].link
        if link.cut_there or link.cut_back:
            return
        which = self._choices.below(3)
        link.cut_there = which != 1
        link.cut_back = which != 0
        if name not in self._cut:
            self._cut.add(name)
            self._happened["cut"] += 1
            self._add(h.CutOff(self._world.now, name))
            self._world.at(self._world.now + self._choices.between(0.1, self._faults.cut_max), self._mend, name)

    def _mend(self, name: str) -> None:
        link = self._simulation.members[name].link
        link.cut_there = link.cut_back = False
        if name in self._cut:
            self._cut.discard(name)
            self._add(h.Rejoined(self._world.now, name))

    # ── the server ───────────────────────────────────────────────────────────────────────────────────────────────

    def _stall(self) -> None:
        if self._server.is_stalled:
            return
        self._server.is_stalled = True
        self._happened["stall"] += 1
        self._add(h.CutOff(self._world.now))
        self._world.at(self._world.now + self._choices.between(0.1, self._faults.stall_max), self._server_goes_on)

    def _server_goes_on(self) -> None:
        if self._server.is_stalled:
            self._add(h.Rejoined(self._world.now))
            self._server.go_on()
