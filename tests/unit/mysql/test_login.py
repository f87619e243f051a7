"""Hazard: a login that cannot begin leaves its socket open."""

from __future__ import annotations

import socket
import threading

import pytest

import holdfast


def test_the_socket_is_closed_when_no_thread_for_the_login_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast-login":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with (
            holdfast.Client(f"mysql://user@127.0.0.1:{server.getsockname()[1]}/locks") as client,
            pytest.raises(holdfast.BackendUnavailable, match="no thread can be started") as refused,
        ):
            client.lock("one").acquire(timeout=0)
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(30)
            assert accepted.recv(1) == b"", "the client has closed its socket"
    # Keeps the frames of the error alive until here, because the end of a frame would close the socket.
    assert refused.value.__traceback__ is not None
