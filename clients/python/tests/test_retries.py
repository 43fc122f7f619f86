"""Which calls are repeated, shown with a peer that fails as the test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cached_objects import NotFound, ServerError, Unavailable

from .conftest import Connect

FOUND = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 2\r\n\r\nok'
WRITTEN = b'HTTP/1.1 201 Created\r\nETag: "1"\r\nDurability: cached\r\nContent-Length: 0\r\n\r\n'
BUSY = b"HTTP/1.1 503 -\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nbusy"
LATER = b"HTTP/1.1 503 -\r\nRetry-After: 3600\r\nContent-Length: 4\r\n\r\nbusy"
AWAY = b"HTTP/1.1 503 -\r\nContent-Length: 4\r\n\r\naway"
MISSING = b"HTTP/1.1 404 -\r\nContent-Length: 4\r\n\r\nnone"
CUT = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 100\r\n\r\nabc'
UNKNOWN = b"HTTP/1.1 504 -\r\nContent-Length: 18\r\n\r\nmay have been made"
NOTHING = b""
STRANGE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """Answers the requests with these responses, each on a connection of its own."""

    def __init__(self) -> None:
        self.responses: list[bytes] = []
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rb") as lines:
                first = lines.readline()
                if not first:
                    return
                self.requests.append(first.split()[0].decode())
                length = 0
                while header := lines.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                lines.read(length)
                end = b"\r\nConnection: close\r\n\r\n"
                connection.sendall(self.responses.pop(0).replace(b"\r\n\r\n", end))
                connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    peer = Peer()
    yield peer
    peer.close()


@pytest.mark.parametrize("responses", [[BUSY, BUSY, FOUND], [NOTHING, CUT, FOUND]])
def test_a_read_is_repeated(peer: Peer, connect: Connect, responses: list[bytes]) -> None:
    peer.responses = list(responses)
    assert connect(peer.url).get("object").data == b"ok"
    assert peer.requests == ["GET"] * 3


def test_a_refused_change_is_repeated_if_it_has_no_condition(peer: Peer, connect: Connect) -> None:
    client = connect(peer.url)
    peer.responses = [BUSY, BUSY, WRITTEN]
    assert client.put("object", b"data").is_new
    assert peer.requests == ["PUT"] * 3
    for call in (
        lambda: client.put("object", b"data", create_only=True),
        lambda: client.put("object", b"data", if_match='"1"'),
        lambda: client.delete("object"),
        lambda: client.copy("object", "other"),
    ):
        peer.responses, peer.requests = [BUSY], []
        with pytest.raises(Unavailable, match="busy") as busy:
            call()
        assert len(peer.requests) == 1
        assert busy.value.is_outcome_unknown, "it may be made, and not as durable as requested"


def test_repeats_have_a_limit(peer: Peer, connect: Connect) -> None:
    peer.responses = [BUSY] * 3
    with pytest.raises(Unavailable, match="busy") as busy:
        connect(peer.url).get("object")
    assert (busy.value.status, busy.value.retry_after) == (503, 0.0)
    assert not busy.value.is_outcome_unknown
    assert peer.requests == ["GET"] * 3


@pytest.mark.parametrize("response", [AWAY, LATER, MISSING])
def test_other_refusals_are_not_repeated(peer: Peer, connect: Connect, response: bytes) -> None:
    peer.responses = [response]
    with pytest.raises(NotFound if response is MISSING else Unavailable):
        connect(peer.url).get("object")
    assert len(peer.requests) == 1


def test_a_change_without_a_response_is_not_repeated(peer: Peer, connect: Connect) -> None:
    client = connect(peer.url)
    for call in (
        lambda: client.put("object", b"data"),
        lambda: client.delete("object"),
        lambda: client.copy("object", "other"),
    ):
        for response in (NOTHING, UNKNOWN):
            peer.responses = [response]
            with pytest.raises(Unavailable, match="may have been made") as unknown:
                call()
            assert unknown.value.is_outcome_unknown
    assert peer.requests == ["PUT", "PUT", "DELETE", "DELETE", "COPY", "COPY"]


def test_a_response_of_another_kind_is_an_error(peer: Peer, connect: Connect) -> None:
    peer.responses = [STRANGE]
    with pytest.raises(ServerError, match="not one of this interface"):
        connect(peer.url).get("object")
