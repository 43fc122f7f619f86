"""A store of zarr (version 3) on the object service: one object for each key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from functools import partial

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.config import config

from .aio import AsyncClient
from .client import Client
from .errors import NotFound, PreconditionFailed


class CachedStore(Store):
    """Keeps a zarr hierarchy in the objects of a client's namespace whose names begin with
    `prefix`.

    A chunk (a shard, where arrays have shards) is one object, so it must be smaller than the
    server's `object_bytes_max`; a larger one raises `TooLarge`. Closing the store leaves the
    client open.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, client: Client, prefix: str = "", *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.client = client
        self._async = AsyncClient(client)
        self.prefix = prefix.strip("/")
        self._begin = f"{self.prefix}/" if self.prefix else ""

    def with_read_only(self, read_only: bool = False) -> CachedStore:
        return CachedStore(self.client, self.prefix, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CachedStore)
            and (self.client, self.prefix) == (other.client, other.prefix)
            and self.read_only == other.read_only
        )

    def __str__(self) -> str:
        return f"{self.client!r}/{self.prefix}"

    def __repr__(self) -> str:
        return f"CachedStore({self.client!r}, {self.prefix!r})"

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        start, stop = _range(byte_range)
        try:
            found = self.client.get(self._begin + key, start, stop)
        except NotFound:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(found.data)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        get = partial(self.get_sync, key, prototype=prototype, byte_range=byte_range)
        return await self._async.in_thread(get)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        calls = [(key, prototype, byte_range) for key, byte_range in key_ranges]
        return await concurrent_map(calls, self.get, limit=config.get("async.concurrency"))

    async def exists(self, key: str) -> bool:
        return await self._async.exists(self._begin + key)

    async def getsize(self, key: str) -> int:
        try:
            return (await self._async.info(self._begin + key)).size_bytes
        except NotFound:
            raise FileNotFoundError(key) from None

    async def getsize_prefix(self, prefix: str) -> int:
        return sum([info.size_bytes async for info in self._async.list(self._begin + prefix)])

    def set_sync(self, key: str, value: Buffer) -> None:
        self._check_writable()
        self.client.put(self._begin + key, value.as_buffer_like())

    async def set(self, key: str, value: Buffer) -> None:
        await self._async.in_thread(partial(self.set_sync, key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        try:
            await self._async.put(self._begin + key, value.as_buffer_like(), create_only=True)
        except PreconditionFailed:
            pass

    def delete_sync(self, key: str) -> None:
        self._check_writable()
        self.client.delete(self._begin + key, missing_ok=True)

    async def delete(self, key: str) -> None:
        await self._async.in_thread(partial(self.delete_sync, key))

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        if prefix and not prefix.endswith("/"):
            prefix += "/"
        keys = [(key,) async for key in self.list_prefix(prefix)]
        await concurrent_map(keys, self.delete, limit=config.get("async.concurrency"))

    async def list(self) -> AsyncGenerator[str, None]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        async for info in self._async.list(self._begin + prefix):
            yield info.name[len(self._begin) :]

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        prefix = prefix.rstrip("/")
        async for child in self._async.children(self._begin + (f"{prefix}/" if prefix else "")):
            yield child.removesuffix("/")


def _range(byte_range: ByteRequest | None) -> tuple[int, int | None]:
    match byte_range:
        case None:
            return 0, None
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            # -0 would be the whole object; an empty range is refused.
            return (-suffix, None) if suffix else (0, 0)
    raise ValueError(f"Unexpected byte_range, got {byte_range!r}")
