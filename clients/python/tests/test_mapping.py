"""Objects as a mapping, compared with a dictionary."""

from __future__ import annotations

import pytest

from cached_objects import Client, ObjectMapping

from .conftest import Server


def test_the_mapping_behaves_as_a_dictionary(server: Server, namespace: str) -> None:
    with Client(server.url, namespace=namespace, auth=server.app) as client:
        client.put("outside", b"kept")
        mapping = ObjectMapping(client, "in/")
        mirror: dict[str, bytes] = {}
        for either in (mapping, mirror):
            either["b"] = b"2"
            either["a/x"] = b"1"
            either["a/x"] = b"3"
            either.update({"c": b"", "d": b"4"})
            assert either.pop("d") == b"4" and either.pop("d", None) is None
            del either["b"]
            with pytest.raises(KeyError):
                del either["b"]
            with pytest.raises(KeyError):
                either["b"]
            assert either.setdefault("c", b"other") == b""
            assert "c" in either and "b" not in either and either.get("b") is None
        assert mapping == mirror and len(mapping) == 2 and sorted(mapping) == ["a/x", "c"]
        assert 1 not in mapping  # type: ignore[comparison-overlap]
        assert client.get("in/a/x").data == b"3"
        mapping.clear()
        assert not list(mapping) and [info.name for info in client.list()] == ["outside"]
