"""The server under test, whose addresses the Rust test `python_package` passes in variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cached_objects import AsyncClient, Client


class Server:
    """A running `cached`, with the keys `app` (every right) and `reader` (which only reads)."""

    def __init__(self) -> None:
        self.url = os.environ["CACHED_TEST_HTTP"]
        self.unix_url = os.environ["CACHED_TEST_UNIX"]
        self.tls_url = os.environ["CACHED_TEST_TLS"]
        self.ca_file = os.environ["CACHED_TEST_CA"]
        self.admin_url = os.environ["CACHED_TEST_ADMIN"]
        self.secret = os.environ["CACHED_TEST_SECRET"]
        self.token = os.environ["CACHED_TEST_TOKEN"]
        self.object_bytes_max = int(os.environ["CACHED_TEST_OBJECT_BYTES_MAX"])
        self.app = ("app", self.secret)
        self.reader = ("reader", self.secret)


class InLoop:
    """An `AsyncClient` with the interface of `Client`, so that both pass the same tests."""

    def __init__(self, client: Client) -> None:
        self.namespace = client.namespace
        self._client = AsyncClient(client)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **parameters: Any) -> Any:
            result = method(*args, **parameters)
            if hasattr(result, "__aiter__"):
                return self._loop.run_until_complete(collected(result))
            return self._loop.run_until_complete(result)

        return call

    def close(self) -> None:
        self._client.close()
        self._loop.close()


async def collected(source: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in source]


@pytest.fixture(scope="session")
def server() -> Server:
    return Server()


@pytest.fixture
def namespace(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty namespace."""
    name = f"test-{abs(hash(request.node.nodeid)):x}"
    yield name
    with Client(server.url, namespace=name, auth=server.app) as client:
        for info in client.list():
            client.delete(info.name)


Connect = Callable[..., Client]


@pytest.fixture(params=["sync", "async"])
def connect(server: Server, namespace: str, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Returns clients of the namespace, of either kind."""
    clients: list[Client] = []

    def create(url: str = server.url, **parameters: Any) -> Client:
        parameters = {"namespace": namespace, "auth": server.app, **parameters}
        if request.param == "sync":
            clients.append(Client(url, **parameters))
        else:
            clients.append(InLoop(Client(url, **parameters)))  # type: ignore[arg-type]
        return clients[-1]

    yield create
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()
