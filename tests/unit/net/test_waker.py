"""Hazard: an error of one descriptor leaves the other one of a waker open, or ends the clean-up of its owner."""

from __future__ import annotations

import os

from holdfast.backends.net.waker import Waker


def test_a_waker_closes_both_ends_when_other_code_has_closed_one() -> None:
    waker = Waker()
    os.close(waker.fileno())

    waker.close()

    assert (waker.fileno(), waker.writing_end) == (-1, -1)
