"""Run `holdfast top` without a terminal, press its keys, and read its screen as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

import holdfast
from holdfast.cli import options
from holdfast.cli.top.app import TopApp
from holdfast.monitor import AsyncMonitor
from tests.support.processes import PATIENCE, now

Steps = Callable[["Screen"], Awaitable[None]]


class Screen:
    """The running application."""

    def __init__(self, app: TopApp, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """The lines of the top page or dialog."""
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def styles_of(self, text: str) -> set[str]:
        """The colours of the segments that contain the text."""
        segments = [
            segment
            for strip in self.app.screen._compositor.render_strips()
            for segment in strip
            if text in segment.text and segment.style is not None
        ]
        return {str(segment.style.color.name) for segment in segments if segment.style and segment.style.color}

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        await self.press(*text)

    async def until(self, condition: Callable[[], bool]) -> None:
        end = now() + PATIENCE
        while not condition():
            assert now() < end, self.text
            await asyncio.sleep(0.01)

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text for text in texts))


def run_top(
    url: str, steps: Steps, *, size: tuple[int, int] = (80, 24), interval: float = 0.5, first_search: float = 1.0
) -> None:
    """Run the application on a store until `steps` has returned.

    A key press waits until the application is idle, so a busy machine has to draw it in less than the interval.
    """

    async def run() -> None:
        async with holdfast.AsyncClient(url) as client:
            options.prepare_existing(client)
            async with AsyncMonitor(client, first_search=first_search) as monitor:
                app = TopApp(client, monitor, await monitor.poll(), interval=interval)
                async with app.run_test(size=size) as pilot:
                    await steps(Screen(app, pilot))

    asyncio.run(run())
