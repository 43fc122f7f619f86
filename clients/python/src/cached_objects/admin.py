"""Administration of namespaces and volumes over the admin listener."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, Self, TypedDict, TypeVar
from urllib.parse import urlencode

from ._transport import Call, Response, Settings, Transport
from .errors import BY_STATUS, ServerError, Unavailable

T = TypeVar("T")

WriteMode = Literal["through", "around", "back", "read-only"]

RESPONSE_SECONDS_MAX = 30.0
"""Longer than the 20 seconds after which the listener answers that an operation continues."""


class VolumeSettings(TypedDict, total=False):
    """The settings of a volume; `None` removes one. docs/nbd.md describes them."""

    is_read_only: bool
    write: Literal["through", "around", "back"] | None
    quota_bytes_max: int | None
    store_requests_per_second_max: int | None
    store_bytes_per_second_max: int | None
    store_burst_ms: int | None
    object_bytes: int | None
    """The size of the volume's objects, which only `create_volume` sets."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The snapshot of which a volume is a clone."""

    volume: str
    snapshot: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a volume."""

    name: str
    size_bytes: int
    created_unix_secs: int
    parent: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """The space that a volume takes in the store."""

    size_bytes: int
    referenced_bytes: int
    exclusive_bytes: int


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume."""

    name: str
    size_bytes: int
    object_bytes: int
    attached: bool
    owner: str | None
    connections: int
    exported: bool
    snapshot_count: int
    settings: VolumeSettings
    origin: Origin | None
    snapshots: tuple[Snapshot, ...] | None = None
    """Its snapshots; `None` in a list of volumes."""
    usage: Usage | None = None
    """Its space in the store; `None` in a list of volumes."""


@dataclass(frozen=True, slots=True)
class DamagedVolume:
    """A volume that cannot be read, and the reason."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of the object cache, and its counters since the start."""

    namespace: str | None
    """Its name; `None` for all namespaces together that are not counted individually."""
    write: WriteMode
    changing: bool
    """Whether an earlier write mode still has an effect."""
    configured: bool
    objects: int
    cached_bytes: int
    dirty_bytes: int
    dirty_bytes_max: int | None
    dirty_age_ms: int
    writes_throttled: int
    read_hits: int
    read_misses: int
    writes: int
    settings: Mapping[str, int | None] | None = None
    """Its settings by their keys in the configuration; `None` in a list of namespaces."""
    sources: Mapping[str, str] | None = None
    """The source of each setting that is not the default; `None` in a list of namespaces."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What `remove_namespace` dropped from the cache."""

    dropped_bytes: int
    discarded_bytes: int
    """Acknowledged data that were not stored, and are lost."""


class Admin:
    """A client of the admin listener. `token` is the content of its token file.

    Operations return when they are complete. After `timeout` seconds an operation raises
    `Unavailable`, and continues in the server. Changes are sent once; only requests that could not
    be sent, and reads, are repeated. The methods raise a `CachedError` if they fail.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 300.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.timeout = timeout
        token = token.strip() if token is not None else None
        settings = Settings(url=url, token=token, timeout=RESPONSE_SECONDS_MAX, tls=tls)
        self._transport = Transport(settings)

    def volumes(self) -> list[Volume]:
        """Returns all volumes that can be read."""
        return [_volume(value) for value in self._get("/volumes")["volumes"]]

    def damaged_volumes(self) -> list[DamagedVolume]:
        """Returns the volumes that cannot be read."""
        return [_from(DamagedVolume, value) for value in self._get("/volumes")["damaged"]]

    def volume(self, name: str) -> Volume:
        """Returns a volume with its snapshots and usage."""
        return _volume(self._get("/volumes/show", name=name))

    def create_volume(self, name: str, size_bytes: int, settings: VolumeSettings | None = None) -> None:
        """Creates an empty volume, which takes no space."""
        body = {"name": name, "size_bytes": size_bytes, "settings": settings or {}}
        self._change("/volumes/create", body)

    def clone_volume(self, source: str, name: str, *, snapshot: str | None = None) -> None:
        """Creates a volume with the content of another, or of its snapshot, without a copy."""
        body = {"source": source, "snapshot": snapshot, "name": name}
        self._change("/volumes/clone", body)

    def resize_volume(self, name: str, size_bytes: int, *, shrink: bool = False) -> None:
        """Changes the size; a smaller one needs `shrink`, and loses the data beyond it."""
        body = {"name": name, "size_bytes": size_bytes, "shrink": shrink}
        self._change("/volumes/resize", body)

    def set_volume(self, name: str, settings: VolumeSettings) -> None:
        """Changes the settings that are named; the others stay."""
        self._change("/volumes/set", {"name": name, "settings": settings})

    def detach_volume(self, name: str) -> None:
        """Releases a volume for other programs, once everything is stored."""
        self._change("/volumes/detach", {"name": name})

    def flatten_volume(self, name: str) -> None:
        """Copies the data that a clone shares with its origin."""
        self._change("/volumes/flatten", {"name": name})

    def delete_volume(self, name: str) -> None:
        """Deletes a volume and its snapshots."""
        self._change("/volumes/delete", {"name": name})

    def snapshot(self, volumes: Sequence[str], snapshot: str) -> None:
        """Makes a snapshot of several volumes at one instant, also while they are written."""
        if isinstance(volumes, str):
            raise TypeError(f"volumes is {volumes!r}; it must be a list of names")
        self._change("/volumes/snapshot", {"volumes": list(volumes), "snapshot": snapshot})

    def delete_snapshot(self, volume: str, snapshot: str) -> None:
        """Deletes a snapshot; its clones keep their data."""
        self._change("/volumes/delete-snapshot", {"name": volume, "snapshot": snapshot})

    def roll_back(self, volume: str, snapshot: str) -> None:
        """Restores a volume to its snapshot; what was written since is lost."""
        self._change("/volumes/rollback", {"name": volume, "snapshot": snapshot})

    def namespaces(self) -> list[Namespace]:
        """Returns the namespaces that are configured or in use, at most 4 097."""
        return [_from(Namespace, value) for value in self._get("/namespaces.json")["namespaces"]]

    def namespace(self, name: str) -> Namespace:
        """Returns a namespace with its settings and their sources."""
        return _from(Namespace, self._get("/namespaces.json", name=name))

    def set_namespace(
        self,
        name: str,
        *,
        write: WriteMode | None = None,
        settings: Mapping[str, int | None] | None = None,
    ) -> None:
        """Changes the write mode, and settings by their keys in the configuration, until the next
        restart; `None` removes a setting. Returns once the previous mode has no further effect:
        if the store fails, that is only after the data are stored."""
        body: dict[str, Any] = {"namespace": name, "settings": settings or {}}
        if write is not None:
            body["write"] = write
        self._until_done("/namespaces/set", body)

    def flush_namespace(self, name: str) -> None:
        """Stores everything that is acknowledged in a namespace. Clients can read and write meanwhile."""
        self._until_done("/namespaces/flush", {"namespace": name})

    def remove_namespace(self, name: str, *, flush: bool = False, discard_dirty: bool = False) -> Removed:
        """Drops a namespace's cached data and the settings made by commands. The store keeps its
        objects. Data that are not stored yet need `flush`, which stores them, or `discard_dirty`,
        which loses them."""
        body = {"namespace": name, "flush": flush, "discard_dirty": discard_dirty}
        return _from(Removed, self._until_done("/namespaces/remove", body))

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _get(self, path: str, **query: str | int) -> Any:
        target = f"{path}?{urlencode(query)}" if query else path
        return self._finished(self._transport.run(Call("GET", target, _json)))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"content-type": "application/json"}
        data = json.dumps(body).encode()
        return self._transport.run(Call("POST", path, _json, headers, data))

    def _change(self, path: str, body: Mapping[str, Any]) -> None:
        self._finished(self._post(path, body))

    def _finished(self, answer: Any) -> Any:
        """Returns the answer or, if it names a job, the job's result."""
        if "job" not in answer:
            return answer
        number = int(answer["job"])
        deadline = time.monotonic() + self.timeout
        while True:
            call = Call("GET", f"/volumes/job?id={number}", _json)
            job = self._transport.run(call)
            if job["state"] == "done":
                return job["result"]
            if job["state"] == "failed":
                status = int(job["status"])
                raise BY_STATUS.get(status, ServerError)(job["error"], status=status)
            if time.monotonic() > deadline:
                line = f"job {number} runs for longer than {self.timeout} s, and continues"
                raise Unavailable(line, is_outcome_unknown=True)
            time.sleep(0.5)

    def _until_done(self, path: str, body: Mapping[str, Any]) -> Any:
        """Repeats a request, which continues the same operation, until it is done."""
        deadline = time.monotonic() + self.timeout
        while True:
            wait = deadline - time.monotonic()
            wait_ms = max(0, round(1000 * min(wait, 20.0)))
            answer = self._post(path, {**body, "wait_ms": wait_ms})
            if answer["done"]:
                return answer
            if time.monotonic() >= deadline:
                line = f"not done after {self.timeout} s, and continues: {answer['why']}"
                raise Unavailable(line, is_outcome_unknown=True)
            time.sleep(0.5)


def _json(response: Response) -> Any:
    return json.loads(response.body)


def _from(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    """Returns a dataclass from JSON; fields that only newer servers have are ignored."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: value[name] for name in names if name in value})


def _volume(value: Mapping[str, Any]) -> Volume:
    kinds: dict[str, Callable[[Any], Any]] = {
        "origin": partial(_from, Origin),
        "snapshots": lambda all: tuple(_from(Snapshot, of) for of in all),
        "usage": partial(_from, Usage),
    }
    typed = {key: kind(value[key]) for key, kind in kinds.items() if value.get(key) is not None}
    return _from(Volume, {**value, **typed})
