"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ._transport import forked
from .client import Client

P = ParamSpec("P")
T = TypeVar("T")


def _call(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **parameters: P.kwargs) -> T:
        return await self.in_thread(partial(method, self.client, *args, **parameters))

    return call


def _items(
    method: Callable[Concatenate[Client, P], Iterator[Sequence[T]]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @wraps(method)
    async def items(self: AsyncClient, /, *args: P.args, **parameters: P.kwargs) -> AsyncIterator[T]:
        pages = method(self.client, *args, **parameters)
        while (page := await self.in_thread(partial(next, pages, None))) is not None:
            for item in page:
                yield item

    return items


class _Threads:
    """The threads of a client, which begin anew in a forked process. A class of its own, because the
    set `forked` would keep only one of several equal clients."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.begin()
        forked.add(self)

    def begin(self) -> None:
        self.pool = ThreadPoolExecutor(self._count, "cached-objects")


class AsyncClient:
    """The methods of a `Client`, for asyncio.

    Each call runs in one of `connections_max` threads. HTTP/1.1 has one call at a time on a
    connection, so more threads would not help, and a client can be used from several event loops.
    If a task is cancelled, its call runs to its end all the same.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._threads = _Threads(client.connections_max)

    get = _call(Client.get)
    info = _call(Client.info)
    exists = _call(Client.exists)
    put = _call(Client.put)
    delete = _call(Client.delete)
    copy = _call(Client.copy)
    list = _items(Client._list)
    children = _items(Client._children)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs a function that uses the client in one of its threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads.pool, work)

    def close(self) -> None:
        """Ends the threads once they are idle, and closes the client's connections."""
        self._threads.pool.shutdown(wait=False)
        self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self.client == other.client if isinstance(other, AsyncClient) else NotImplemented

    def __hash__(self) -> int:
        return hash((AsyncClient, self.client))

    def __repr__(self) -> str:
        return f"AsyncClient({self.client!r})"

    def __reduce__(self) -> tuple[type[AsyncClient], tuple[Client]]:
        return AsyncClient, (self.client,)
