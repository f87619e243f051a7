"""Hazard: two locks whose keys overlap block each other, or list each other's tickets."""

from __future__ import annotations

import pytest

from holdfast.backends.etcd.protocol.keys import Keys, parse_key, range_end

NAMES = ["a", "A", "a/b", "a%2Fb", "a%2fb", "a%", "%", "/", "", "ä", "\0", "a\0b", "😀", "%gone", "a ", "\x7f"]


@pytest.mark.parametrize("name", NAMES)
def test_keys_contain_the_lock_name(name: str) -> None:
    keys = Keys("locks/", raw_names=False)

    assert keys.lock_name(keys.ticket(name, "0" * 32, 1, exclusive=True)) == name
    assert keys.single_key_name(keys.base(name)) == name


def test_folders_of_locks_do_not_overlap() -> None:
    keys = Keys("locks/", raw_names=False)
    folders = [keys.folder_range(name)[0] for name in NAMES]

    for folder in folders:
        assert [other for other in folders if other.startswith(folder)] == [folder]


def test_tombstones_belong_to_no_lock() -> None:
    keys = Keys("", raw_names=False)

    assert keys.lock_name(keys.tombstone("0" * 32)) is None
    assert not any(keys.tombstone("0" * 32).startswith(keys.folder_range(name)[0]) for name in NAMES)


@pytest.mark.parametrize(
    ("exclusive", "limit"),
    [(True, 1), (False, None), (False, 1), (False, 1_000_000)],
    ids=["x", "r", "s1", "s million"],
)
def test_parse_key_returns_the_kind_of_ticket(exclusive: bool, limit: int | None) -> None:  # noqa: FBT001 (parametrised)
    key = Keys("", raw_names=False).ticket("a", "0123456789abcdef" * 2, limit, exclusive=exclusive)

    parsed = parse_key(key, 7)

    assert (parsed.exclusive, parsed.limit, parsed.is_ours, parsed.created) == (exclusive, limit, True, 7)


@pytest.mark.parametrize("suffix", ["694d81a1f5c0e702", "", "0" * 32, "0" * 32 + ".s", "0" * 32 + ".x2"])
def test_a_key_of_another_program_is_exclusive(suffix: str) -> None:
    parsed = parse_key(b"locks/a/" + suffix.encode(), 7)

    assert (parsed.exclusive, parsed.is_ours) == (True, False)


def test_range_end_follows_all_keys_with_the_prefix() -> None:
    assert range_end(b"a/") == b"a0"
    assert range_end(b"a\xff") == b"b"
    assert range_end(b"\xff") == b"\0"
