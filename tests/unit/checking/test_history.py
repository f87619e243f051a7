"""A stored history differs from the recorded one, or the same run gives different bytes."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.checking.descriptions import describe, subject
from tests.unit.checking.histories import ONE_OF_EACH


def test_one_of_each_has_every_type_of_event() -> None:
    assert [type(event) for event in ONE_OF_EACH if type(event) not in h.EVENT_TYPES] == []
    assert len({type(event) for event in ONE_OF_EACH}) == len(h.EVENT_TYPES) == len(ONE_OF_EACH)


def test_a_history_is_equal_after_it_was_written_and_read() -> None:
    lines = list(h.to_lines(ONE_OF_EACH))

    copy = h.from_lines(line + "\n" for line in lines)

    assert copy == ONE_OF_EACH
    assert [type(event) for event in copy] == [type(event) for event in ONE_OF_EACH]
    assert list(h.to_lines(copy)) == lines


def test_equal_histories_give_identical_lines() -> None:
    assert list(h.to_lines([h.AcquireStarted(1, "a", 1, "x", timeout=0)])) == list(
        h.to_lines([h.AcquireStarted(1.0, "a", 1, "x", 0.0)])
    )
    assert list(h.to_lines([h.Paused(1, "a")])) != list(h.to_lines([h.Resumed(1, "a")]))


def test_a_line_has_the_fields_in_order_and_no_defaults() -> None:
    assert list(h.to_lines([h.Crashed(7.25, "a"), h.Crashed(8, "a", "kill")])) == [
        '{"event":"Crashed","at":7.25,"client":"a"}',
        '{"event":"Crashed","at":8.0,"client":"a","reason":"kill"}',
    ]


def test_infinite_times_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(h.to_lines([h.End(float("inf"))]))


@pytest.mark.parametrize(
    "line", ["no json", "[]", "{}", '{"event":"Nonsense","at":1}', '{"event":"End"}', '{"event":"End","at":1,"x":2}']
)
def test_an_invalid_line_is_named_in_the_error(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the history"):
        h.from_lines(['{"event":"End","at":1}', line])


def test_blank_lines_are_skipped() -> None:
    assert h.from_lines(["", "\n", '{"event":"End","at":1}\n']) == [h.End(1)]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_event_has_a_description(event: h.Event) -> None:
    assert describe(event)
    assert subject(event)
