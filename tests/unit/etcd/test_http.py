"""Hazard: a response that arrives in pieces is parsed wrongly, or is used for another request."""

from __future__ import annotations

import pytest

from holdfast.backends.etcd.io.http import HEAD_MAX, NotHttp, Response, encode_request

WHOLE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = (
    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
    b'4\r\n{"a"\r\n3;note=1\r\n:1}\r\n0\r\nX: y\r\n\r\n'
)


def test_a_request_has_host_length_and_token() -> None:
    assert encode_request("h:1", "kv/range", "token", b"{}") == (
        b"POST /v3/kv/range HTTP/1.1\r\nHost: h:1\r\nAuthorization: token\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("data", [WHOLE, CHUNKED], ids=["whole", "chunked"])
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_response_can_arrive_in_pieces(data: bytes, step: int) -> None:
    response = Response()

    for start in range(0, len(data), step):
        assert not response.is_complete
        response.feed(data[start : start + step])

    assert response.is_complete
    assert response.body == b'{"a":1}'
    assert response.status in (200, 404)


def test_lines_of_a_stream_are_returned_as_soon_as_they_are_complete() -> None:
    response = Response()
    response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}\n{}\r\n")
    assert response.lines() == [b"{}"]

    response.feed(b"4\r\n\n[]\n\r\n")

    assert response.lines() == [b"{}", b"[]"]
    assert not response.is_complete


def test_a_connection_is_not_reused_when_the_server_closes_it() -> None:
    response = Response()
    response.feed(WHOLE.replace(b"Content-Type: application/json", b"Connection: close"))

    assert response.is_last


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-ERR unknown command\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: much\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * HEAD_MAX,
    ],
    ids=["end", "another protocol", "no length", "odd length", "odd chunk", "endless head"],
)
def test_invalid_http_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttp):
        Response().feed(data)
