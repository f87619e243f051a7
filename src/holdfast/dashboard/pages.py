"""The pages. They contain no data, so each is composed once; scripts fill them in."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).with_name("static")


def _read(name: str) -> str:
    return (STATIC / f"{name}.html").read_text(encoding="utf-8")


def _page(name: str, title: str) -> str:
    return _read("layout").replace("@title@", title).replace("@script@", name).replace("@main@", _read(name))


PAGES = {
    name: _page(name, title)
    for name, title in {"locks": "Locks", "lock": "Lock", "waits": "Waits", "store": "Store"}.items()
}
SIGN_IN = _read("sign-in")
SIGNED_IN = _read("signed-in")
