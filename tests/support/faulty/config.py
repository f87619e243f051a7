"""The options of a faulty URL: none."""

from __future__ import annotations

OPTIONS: tuple[()] = ()
