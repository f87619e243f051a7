"""Real failovers, restarts and migrations of servers under `holdfast verify`: `make failovers` runs them.

They use the server processes of tests/support, so they are part of the repository and not of the wheel.
"""
