"""Administration of volumes and namespaces."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cached_objects import (
    Admin,
    Client,
    Conflict,
    Denied,
    InvalidRequest,
    NotFound,
    Origin,
    Removed,
)

from .conftest import Server

MIB = 1 << 20


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.admin_url, token=server.token) as admin:
        yield admin


def test_volumes_are_managed(admin: Admin) -> None:
    assert admin.volumes() == [] and admin.damaged_volumes() == []
    admin.create_volume("disk", 8 * MIB, {"write": "back", "store_burst_ms": 7})
    admin.create_volume("log", MIB)
    admin.snapshot(["disk", "log"], "monday")
    admin.clone_volume("disk", "copy", snapshot="monday")
    admin.clone_volume("log", "log copy")
    admin.resize_volume("copy", 16 * MIB)
    admin.set_volume("disk", {"write": None, "is_read_only": True})
    listed = {volume.name: volume for volume in admin.volumes()}
    assert sorted(listed) == ["copy", "disk", "log", "log copy"]
    assert listed["copy"].origin == Origin("disk", "monday") and listed["copy"].size_bytes == 16 * MIB
    assert listed["disk"].snapshots is None
    disk = admin.volume("disk")
    assert disk.settings["is_read_only"] and disk.settings["write"] is None
    assert disk.settings["store_burst_ms"] == 7
    assert disk.snapshots and disk.snapshots[0].name == "monday"
    assert disk.usage and disk.usage.size_bytes == 8 * MIB
    assert (disk.snapshot_count, disk.connections, disk.attached) == (1, 0, False)
    admin.set_volume("disk", {"is_read_only": False})
    with pytest.raises(Conflict, match="shrink"):
        admin.resize_volume("copy", MIB)
    admin.resize_volume("copy", MIB, shrink=True)
    admin.flatten_volume("copy")
    assert admin.volume("copy").origin is None
    admin.roll_back("disk", "monday")
    admin.delete_snapshot("disk", "monday")
    admin.detach_volume("disk")
    for name in listed:
        admin.delete_volume(name)
    assert admin.volumes() == []


def test_mistakes_with_volumes_are_named(admin: Admin) -> None:
    for call in (admin.volume, admin.delete_volume, admin.flatten_volume):
        with pytest.raises(NotFound, match="none"):
            call("none")
    with pytest.raises(InvalidRequest, match=r"settings\.colour"):
        admin.create_volume("disk", MIB, {"colour": 1})  # type: ignore[arg-type]
    admin.create_volume("disk", MIB)
    with pytest.raises(Conflict, match="exists"):
        admin.create_volume("disk", MIB)
    with pytest.raises(TypeError, match="list of names"):
        admin.snapshot("disk", "monday")
    admin.delete_volume("disk")


def test_a_namespace_is_set_and_removed(admin: Admin, server: Server) -> None:
    name = f"namespace-{uuid.uuid4().hex}"
    with pytest.raises(NotFound):
        admin.namespace(name)
    with pytest.raises(NotFound):
        admin.flush_namespace(name)
    admin.set_namespace(name, write="back", settings={"quota_bytes_max": 8192})
    shown = admin.namespace(name)
    assert (shown.write, shown.changing) == ("back", False)
    assert shown.settings and shown.settings["quota_bytes_max"] == 8192
    assert shown.sources and shown.sources["write"] == "command"
    with Client(server.url, namespace=name, auth=server.app) as client:
        client.put("object", bytes(4096), durability="cached")
        [listed] = [of for of in admin.namespaces() if of.namespace == name]
        assert (listed.dirty_bytes, listed.objects, listed.settings) == (4096, 1, None)
        with pytest.raises(Conflict, match="not stored"):
            admin.remove_namespace(name)
        admin.flush_namespace(name)
        assert admin.namespace(name).dirty_bytes == 0
        client.put("object", bytes(4096), durability="cached")
        assert admin.remove_namespace(name, flush=True) == Removed(4096, 0)
        assert client.get("object").data == bytes(4096)
        client.delete("object")
    with pytest.raises(InvalidRequest):
        admin.set_namespace(name)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        admin.remove_namespace(name, flush=True, discard_dirty=True)
    admin.set_namespace(name, write="through")
    admin.set_namespace(name, settings={"quota_bytes_max": None})


def test_a_change_needs_the_token(server: Server) -> None:
    for token in (None, "another token"):
        with Admin(server.admin_url, token=token) as admin, pytest.raises(Denied, match="token"):
            admin.create_volume("disk", MIB)
    with Admin(server.admin_url) as admin:
        assert admin.volumes() == []
