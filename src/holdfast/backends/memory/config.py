"""The options of a memory URL: none."""

from __future__ import annotations

OPTIONS: tuple[()] = ()
