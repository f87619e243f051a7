"""Injects faults: draws every second for every process and for the server, until the world is healed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_lab.checking import history as h

if TYPE_CHECKING:
    from holdfast_lab.sim.run import Simulation
    from holdfast_lab.sim.servers.base import Server

TICK = 1.0
BURST_MAX = 6  # more idle connections that exist when all connections vanish


class Nemesis:
    """Injects the faults of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._choices = simulation.choices
        self._faults = simulation.faults
        self._server = simulation.server
        self._add = simulation.recorder.add
        self._happened = simulation.recorder.happened
        self._is_active = True
        self._cuts: dict[str, int] = {}  # client -> index of the link that is cut; 0: all its links
        self._backed_up = False
        self._world.at(TICK, self._tick)

    def stop(self) -> None:
        """End all faults for good."""
        self._is_active = False
        for name in list(self._simulation.members):
            self._resume(name)
            self._end_cut(name)
            self._restart(name)
            self._end_lookup_stall(name)
        for node in self._server.nodes:
            self._end_stall(node)

    def _tick(self) -> None:
        if not self._is_active:
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
                self._cut_link(name)
            if choices.chance(faults.drop) and self._server.drop(self._simulation.members[name].process):
                self._happened["drop"] += 1
            link = self._simulation.members[name].link
            if choices.chance(faults.vanish) and link.vanish(choices.below(BURST_MAX)):
                self._happened["vanish"] += 1
                self._add(h.FaultStarted(self._world.now, "vanish", f"connections of {name}"))
                self._add(h.FaultEnded(self._world.now, "vanish", f"connections of {name}"))
            if choices.chance(faults.lookup_stall):
                self._stall_lookups(name)
        node = choices.pick(self._server.nodes)
        if choices.chance(faults.stall):
            self._stall(node)
        if choices.chance(faults.restart):
            self._happened["restart"] += 1
            self._add(h.FaultStarted(self._world.now, "restart", "with its data"))
            node.restart()
            self._add(h.FaultEnded(self._world.now, "restart", "with its data"))
        if choices.chance(faults.lose_data):
            self._happened["lose_data"] += 1
            self._add_all(node.state_lost("data", "all of it"))
            node.lose_data()
        if faults.old_data:
            if not self._backed_up or choices.chance(0.2):
                for other in self._server.nodes:
                    other.back_up()
                self._backed_up = True
            elif choices.chance(faults.old_data):
                self._happened["old_data"] += 1
                self._add_all(node.state_lost("data", "an old copy was restored"))
                node.restore_data()
        if choices.chance(faults.step_clock):
            self._happened["step_clock"] += 1
            self._add_all(node.state_lost("clock"))
            node.step_clock(-choices.between(0.001, self._server.clock_back_max))
        if choices.chance(faults.leap_clock):
            self._happened["leap_clock"] += 1
            self._add_all(node.state_lost("lease", "its clock jumped forward"))
            node.step_clock(choices.between(0.001, faults.leap_max))
        if choices.chance(faults.break_lock) and self._simulation.break_a_lease():
            self._happened["break_lock"] += 1

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────

    def _pause(self, name: str) -> None:
        process = self._simulation.members[name].process
        if process.is_dead or process.is_paused:
            return
        process.pause()
        self._happened["pause"] += 1
        self._add(h.Paused(self._world.now, name))
        self._world.at(self._world.now + self._choices.between(0.01, self._faults.pause_max), self._resume, name)

    def _resume(self, name: str) -> None:
        process = self._simulation.members[name].process
        if process.is_paused:
            self._add(h.Resumed(self._world.now, name))
            process.resume()

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
            self._simulation.start(name, member.rounds_left)
            if name in self._cuts:
                self._cut_link(name)

    def restart_client(self, name: str) -> None:
        """Restart a program that ended because its client refused to continue. This does not count as a fault."""
        member = self._simulation.members[name]
        self._add(h.Crashed(self._world.now, name, "its client refused to continue"))
        member.crash()
        self._server.process_died(member.process)
        self._restart(name)

    # ── the network ──────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_link(self, name: str) -> None:
        trunk = self._simulation.members[name].link
        links = [trunk, *trunk.branches]
        if any(link.requests_cut or link.replies_cut for link in links):
            return
        which = self._choices.below(3)
        is_new = name not in self._cuts
        index = self._choices.below(len(links)) if is_new and trunk.branches else self._cuts.get(name, 0)
        for link in links if index == 0 else [links[index]]:
            link.requests_cut = which != 1
            link.replies_cut = which != 0
        if is_new:
            self._cuts[name] = index
            self._happened["cut"] += 1
            now = self._world.now
            self._add(h.FaultStarted(now, "cut", _link_name(name, index)) if index else h.Unreachable(now, name))
            self._world.at(now + self._choices.between(0.1, self._faults.cut_max), self._end_cut, name)

    def _end_cut(self, name: str) -> None:
        trunk = self._simulation.members[name].link
        for link in [trunk, *trunk.branches]:
            link.requests_cut = link.replies_cut = False
        index = self._cuts.pop(name, None)
        if index is not None:
            now = self._world.now
            self._add(h.FaultEnded(now, "cut", _link_name(name, index)) if index else h.Reachable(now, name))

    def _stall_lookups(self, name: str) -> None:
        link = self._simulation.members[name].link
        if link.pool is None or link.lookups_stall:
            return
        link.lookups_stall = True
        self._happened["lookup_stall"] += 1
        self._add(h.FaultStarted(self._world.now, "lookup_stall", name))
        seconds = self._choices.between(0.1, self._faults.lookup_stall_max)
        self._world.at(self._world.now + seconds, self._end_lookup_stall, name)

    def _end_lookup_stall(self, name: str) -> None:
        link = self._simulation.members[name].link
        if link.lookups_stall:
            link.lookups_stall = False
            self._add(h.FaultEnded(self._world.now, "lookup_stall", name))

    # ── the server ───────────────────────────────────────────────────────────────────────────────────────────────

    def _stall(self, node: Server) -> None:
        if node.is_stalled:
            return
        node.is_stalled = True
        self._happened["stall"] += 1
        self._add(node.stall_event())
        self._world.at(self._world.now + self._choices.between(0.1, self._faults.stall_max), self._end_stall, node)

    def _end_stall(self, node: Server) -> None:
        if node.is_stalled:
            self._add(node.stall_end_event())
            node.resume()

    def _add_all(self, events: list[h.Event]) -> None:
        for event in events:
            self._add(event)


def _link_name(client: str, index: int) -> str:
    return f"between {client} and node {index - 1}"
