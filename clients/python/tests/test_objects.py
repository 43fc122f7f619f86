"""Objects through both clients, against the server."""

from __future__ import annotations

import array
import multiprocessing
import pickle
import socket
import ssl
import threading

import pytest

import cached_objects._transport
import cached_objects.client
from cached_objects import (
    AsyncClient,
    Client,
    Denied,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    Unavailable,
)

from .conftest import Connect, Server

NAMES = [
    "plain",
    "with space+plus",
    "100% ?&=#;:@,$!*'()[]",
    "öäü ☃",
    "a/b/c",
    "a//b",
    "/lead",
    "tail/",
    "a/./b/../c",
    ".",
    "..",
    '\\back"quote\n',
    "\udcff\udcfe not UTF-8",
    "x" * 255,
]


def test_every_name_is_the_same_name_in_every_request(client: Client) -> None:
    for name in NAMES:
        written = client.put(name, name.encode("utf-8", "surrogateescape"))
        assert written.is_new
        copied = client.copy(name, name[:250] + "copy!")
        assert copied.is_new
    for name in NAMES:
        read = client.get(name)
        assert read.data == name.encode("utf-8", "surrogateescape")
        info = client.info(name)
        assert (info.name, info.size_bytes, info.etag) == (name, len(read.data), read.etag)
        assert client.get(name[:250] + "copy!").data == read.data
    listed = {info.name: info for info in client.list()}
    assert sorted(listed) == sorted([*NAMES, *(name[:250] + "copy!" for name in NAMES)])
    for name in NAMES:
        assert listed[name] == client.info(name)
        client.delete(name)
        assert not client.exists(name)
        assert client.get(name[:250] + "copy!").data


def test_bytes_are_names_too(client: Client) -> None:
    client.put(b"\xff", b"1")
    assert client.get("\udcff").data == b"1"
    assert [info.name for info in client.list(b"\xff")] == ["\udcff"]


def test_ranges_are_those_of_slices(client: Client) -> None:
    data = bytes(range(100))
    client.put("object", data)
    for start, stop in [(0, None), (0, 1), (10, 20), (99, 100), (90, 200), (50, None), (-7, None)]:
        read = client.get("object", start, stop)
        assert (read.data, read.size_bytes) == (data[start:stop], 100)
    assert client.get("object", -1000).data == data
    for start in (100, 1000):
        with pytest.raises(RangeNotSatisfiable):
            client.get("object", start)
    for start, stop in [(5, 5), (5, 4), (0, 0), (-3, -1), (0, -1)]:
        with pytest.raises(ValueError, match="at least one"):
            client.get("object", start, stop)


def test_every_buffer_is_written(client: Client, server: Server) -> None:
    numbers = array.array("d", [1.5, -2.25, 1e300])
    large = bytes(range(256)) * (server.object_bytes_max // 256)
    for data in (b"bytes", bytearray(b"array"), memoryview(b"a view")[2:], numbers, b"", large):
        assert client.put("object", data).durability
        expected = memoryview(data).tobytes()
        assert client.get("object").data == expected
        assert client.info("object").size_bytes == len(expected)
    with pytest.raises((TypeError, ValueError)):
        client.put("object", memoryview(b"strided")[::2])
    with pytest.raises(TypeError):
        client.put("object", "text")  # type: ignore[arg-type]


def test_an_object_larger_than_the_server_takes_is_refused(client: Client, server: Server) -> None:
    for size in (server.object_bytes_max + 1, 16 * server.object_bytes_max):
        with pytest.raises(TooLarge, match="S3 sidecar") as refused:
            client.put("object", bytes(size))
        assert str(server.object_bytes_max) in refused.value.line
        assert refused.value.status == 413
    assert not client.exists("object")
    client.put("object", bytes(server.object_bytes_max))


def test_conditions_protect_the_changes_of_others(client: Client) -> None:
    first = client.put("object", b"1", create_only=True)
    assert first.is_new
    with pytest.raises(PreconditionFailed):
        client.put("object", b"2", create_only=True)
    assert client.get("object", if_match=first.etag).data == b"1"
    second = client.put("object", b"2", if_match=first.etag)
    assert not second.is_new and second.etag != first.etag
    for etag in (first.etag, '"nonsense"'):
        with pytest.raises(PreconditionFailed):
            client.put("object", b"3", if_match=etag)
        with pytest.raises(PreconditionFailed):
            client.get("object", if_match=etag)
        with pytest.raises(PreconditionFailed):
            client.delete("object", if_match=etag)
        with pytest.raises(PreconditionFailed):
            client.copy("object", "other", if_match=etag)
    with pytest.raises(PreconditionFailed):
        client.put("none", b"3", if_match="*")
    with pytest.raises(ValueError, match="exclude each other"):
        client.put("object", b"3", create_only=True, if_match="*")
    assert client.get("object").data == b"2"
    client.delete("object", if_match=second.etag)
    assert not client.exists("object")


def test_an_object_is_copied_between_namespaces(client: Client, connect: Connect) -> None:
    other = connect(namespace=f"{client.namespace!s}-2/of two")
    source = client.put("object", b"content")
    assert client.copy("object", "copy", if_match=source.etag, to_namespace=other.namespace).is_new
    assert other.get("copy").data == b"content"
    assert not client.copy("object", "copy", to_namespace=other.namespace).is_new
    with pytest.raises(PreconditionFailed):
        client.copy("object", "copy", create_only=True, to_namespace=other.namespace)
    with pytest.raises(NotFound):
        client.copy("none", "copy")
    other.delete("copy")


def test_a_listing_has_pages_and_prefixes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_objects.client, "PAGE_OBJECTS", 3)
    names = sorted([*(f"a/{i:02}" for i in range(10)), "a", "b/x/1", "b/x/2", "b/y", "b-", "c/1"])
    for name in names:
        client.put(name, name.encode())
    assert [info.name for info in client.list()] == names
    assert [info.size_bytes for info in client.list("a/")] == [4] * 10
    assert [info.name for info in client.list("b", after="b/x/1")] == ["b/x/2", "b/y"]
    assert list(client.list("none")) == []
    assert list(client.children()) == ["a", "a/", "b-", "b/", "c/"]
    assert list(client.children("b/")) == ["x/", "y"]
    assert list(client.children("a/")) == [f"{i:02}" for i in range(10)]
    assert list(client.children("none/")) == []


def test_a_missing_object_is_not_found(client: Client) -> None:
    for call in (client.get, client.info, client.delete):
        with pytest.raises(NotFound) as missing:
            call("none")
        assert missing.value.status == 404 and missing.value.line
    client.delete("none", missing_ok=True)
    assert not client.exists("none")


def test_a_change_has_the_durability_that_was_requested(client: Client, connect: Connect) -> None:
    assert client.put("object", b"1", durability="stored").durability == "stored"
    stored = connect(durability="stored")
    assert stored.put("object", b"2").durability == "stored"
    assert stored.copy("object", "copy").durability == "stored"
    assert client.put("object", b"3", durability="cached").durability
    with pytest.raises(InvalidRequest):
        client.put("object", b"4", durability="forever")  # type: ignore[arg-type]
    assert client.get("object").data == b"3"


def test_rights_are_those_of_the_key(client: Client, connect: Connect, server: Server) -> None:
    client.put("object", b"1")
    reader = connect(auth=server.reader)
    assert reader.get("object").data == b"1"
    for auth in (server.reader, ("app", "wrong secret"), ("nobody", server.secret), None):
        other = connect(auth=auth)
        with pytest.raises(Denied):
            other.put("object", b"2")
        with pytest.raises(Denied):
            other.delete("object")
        with pytest.raises(Denied) as denied:
            other.copy("object", "copy")
        assert denied.value.line
    with pytest.raises(Denied):
        connect(namespace=".synapse").put("object", b"2")
    assert [info.name for info in client.list()] == ["object"]


def test_mistakes_are_named(client: Client, connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="255"):
        client.put("x" * 256, b"")
    for call in (client.get, client.exists, client.delete):
        with pytest.raises(ValueError, match="name is empty"):
            call("")
    with pytest.raises(ValueError, match="namespace is empty"):
        connect(namespace="")
    for url in ("127.0.0.1:1", "ftp://host", "http://host/path", "http://u:p@host", "http:///"):
        with pytest.raises(ValueError, match="it must be http://HOST:PORT"):
            connect(url)


def test_threads_share_few_connections(server: Server, namespace: str) -> None:
    failures: list[BaseException] = []
    with Client(server.url, namespace=namespace, auth=server.app, connections_max=2) as client:

        def work(number: int) -> None:
            try:
                for step in range(20):
                    data = f"{number} {step}".encode() * 1000
                    client.put(f"object {number}", data)
                    assert client.get(f"object {number}").data == data
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(list(client.list())) == 8


def test_a_client_is_equal_to_its_copy_and_hides_its_secret(server: Server) -> None:
    def create(namespace: str) -> Client:
        return Client(server.url, namespace=namespace, auth=server.app, timeout=7.0)

    for client in (create("n"), AsyncClient(create("n"))):
        copy = pickle.loads(pickle.dumps(client))
        assert copy == client and hash(copy) == hash(client)
        assert copy != create("other") and copy != AsyncClient(create("other"))
        assert server.secret not in repr(client)


def test_a_forked_process_has_connections_of_its_own(server: Server, namespace: str) -> None:
    with Client(server.url, namespace=namespace, auth=server.app) as client:

        def work(name: str) -> None:
            for step in range(50):
                data = f"{name} {step}".encode()
                client.put(name, data)
                assert client.get(name).data == data

        client.put("object", b"")
        child = multiprocessing.get_context("fork").Process(target=work, args=["child"])
        child.start()
        work("parent")
        child.join()
        assert child.exitcode == 0


def test_a_closed_or_old_connection_is_not_used(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(server.url, namespace=namespace, auth=server.app) as client:
        client.put("object", b"1")
        [idle] = client._transport._idle
        idle.connection.sock.shutdown(socket.SHUT_RDWR)
        client.put("object", b"2")
        [other] = client._transport._idle
        assert other.connection is not idle.connection
        monkeypatch.setattr(cached_objects._transport, "IDLE_SECONDS_MAX", -1.0)
        client.put("object", b"3")
        assert client._transport._idle[0].connection is not other.connection


def test_a_unix_socket_and_tls_carry_the_same(connect: Connect, server: Server) -> None:
    tls = ssl.create_default_context(cafile=server.ca_file)
    data = bytes(range(256)) * 1000
    for client in (connect(server.unix_url), connect(server.tls_url, tls=tls)):
        client.put("object", data)
        assert client.get("object").data == data
        client.delete("object")
    with pytest.raises(Unavailable, match="certificate"):
        connect(server.tls_url).exists("object")


def test_an_absent_server_is_unavailable(connect: Connect) -> None:
    for url in ("http://127.0.0.1:1", "unix:/nonexistent/socket"):
        with pytest.raises(Unavailable, match="cannot connect to") as absent:
            connect(url, retries=1).put("object", b"")
        assert not absent.value.is_outcome_unknown
