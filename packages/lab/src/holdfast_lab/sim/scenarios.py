"""A small world with a server and clients that a test or search controls. No nemesis and no random workload."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast_lab.sim.client import SimClient, SimLock
from holdfast_lab.sim.faults import CALM
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.recorder import Recorder
from holdfast_lab.sim.world import Task, World

if TYPE_CHECKING:
    from holdfast_lab.sim.choices import Choices
    from holdfast_lab.sim.run import Plan

LOCK = "lock"


class ClientProcess(NamedTuple):
    """A client with its process and its link to the server."""

    process: Process
    link: Link
    client: SimClient

    def lock(self, ttl: float) -> SimLock:
        return self.client.lock(LOCK, options={"ttl": ttl})

    def start(self, coroutine: Coroutine[Any, Any, None], name: str = "worker") -> Task:
        return self.process.start(coroutine, name)


class SmallWorld:
    """A world with the server and engine of a plan. Subclasses may replace its parts. Call `end` after use."""

    world_type: type[World] = World
    recorder_type: type[Recorder] = Recorder
    process_type: type[Process] = Process

    def __init__(self, plan: Plan, choices: Choices) -> None:
        self.plan = plan
        self.choices = choices
        self.world = self.world_type(choices)
        self.recorder = self.recorder_type(self.world)
        self.server = plan.server_type(self.world, self.recorder)
        self.members: dict[str, ClientProcess] = {}
        self._dead_members: list[ClientProcess] = []

    def link(self, process: Process) -> Link:
        return Link(process, self.server, CALM)

    def add(self, name: str) -> ClientProcess:
        """Start a new process; it replaces one with the same name."""
        if name in self.members:
            self._dead_members.append(self.members[name])
        process = self.process_type(self.world, name)
        link = self.link(process)
        member = ClientProcess(process, link, self.plan.make_client(process, self.server, link, self.recorder))
        self.members[name] = member
        return member

    def end(self) -> None:
        """Stop all processes and the server."""
        for member in [*self._dead_members, *self.members.values()]:
            member.process.crash()
            member.client.engine.abandon("the world has ended")
            for task in member.process.tasks:
                task.close()
        self.server.end()
