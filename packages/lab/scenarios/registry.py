"""All scenarios, in the order of the page."""

from __future__ import annotations

from packages.lab.scenarios import broken, mariadb, plain, postgresql, redis, rolling

SCENARIOS = {
    scenario.name: scenario
    for module in (redis, postgresql, mariadb, rolling, plain, broken)
    for scenario in module.SCENARIOS
}
