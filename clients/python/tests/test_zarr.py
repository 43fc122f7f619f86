"""The store under zarr's own tests, and arrays in it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
import zarr
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests

from cached_objects import Client, TooLarge
from cached_objects.zarr import CachedStore

from .conftest import Server


class TestCachedStore(StoreTests[CachedStore, cpu.Buffer]):
    store_cls = CachedStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, server: Server, namespace: str) -> dict[str, Any]:
        return {"client": Client(server.url, namespace=namespace, auth=server.app), "prefix": "p/q"}

    async def set(self, store: CachedStore, key: str, value: Buffer) -> None:
        store.client.put(f"p/q/{key}", value.to_bytes())

    async def get(self, store: CachedStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(store.client.get(f"p/q/{key}").data)

    def test_store_repr(self, store: CachedStore) -> None:
        assert repr(store) == f"CachedStore({store.client!r}, 'p/q')"

    def test_store_supports_writes(self, store: CachedStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: CachedStore) -> None:
        assert store.supports_listing


@pytest.fixture
def client(server: Server, namespace: str) -> Client:
    return Client(server.url, namespace=namespace, auth=server.app)


@pytest.mark.parametrize("shards", [None, (20, 30)])
def test_an_array_is_kept(client: Client, shards: tuple[int, int] | None) -> None:
    store = CachedStore(client, "arrays")
    values = numpy.arange(40 * 60, dtype="f8").reshape(40, 60)
    group = zarr.create_group(store)
    array = group.create_array("a", shape=(40, 60), chunks=(10, 10), shards=shards, dtype="f8")
    array[:] = values
    array[5:15, 5:15] = -1
    values[5:15, 5:15] = -1
    group.create_group("inner").attrs["note"] = "text"
    # Another process would open a copy.
    again = zarr.open_group(pickle.loads(pickle.dumps(store)), mode="r")
    read = zarr.open_array(again.store, path="a", mode="r")
    numpy.testing.assert_array_equal(read[:], values)
    numpy.testing.assert_array_equal(read[3:17, 50:], values[3:17, 50:])
    assert sorted(again.keys()) == ["a", "inner"] and again["inner"].attrs["note"] == "text"
    assert not list(client.children(""))[1:]
    del group["a"]
    assert sorted(zarr.open_group(store, mode="r").keys()) == ["inner"]


def test_a_chunk_larger_than_the_server_takes_is_refused(client: Client, server: Server) -> None:
    shape = (server.object_bytes_max + 1,)
    array = zarr.create_array(CachedStore(client), shape=shape, chunks=shape, dtype="u1", compressors=None)
    with pytest.raises(TooLarge, match="S3 sidecar"):
        array[:] = 1
