"""The object service's requests and responses, without input or output."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from ._transport import Call, Response

if TYPE_CHECKING:
    from typing_extensions import Buffer

Durability = Literal["cached", "journaled", "stored"]

Name = str | bytes
"""A name of 1 to 255 bytes. Text is UTF-8. In names that are returned, bytes that are not UTF-8 are
as in Python's file names (`surrogateescape`)."""

NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class Object:
    """An object, or a range of it, as read."""

    data: bytes
    etag: str
    """The version of the object, for `if_match`."""
    size_bytes: int
    """The size of the whole object."""


@dataclass(frozen=True, slots=True)
class Info:
    """An object without its data."""

    name: str
    size_bytes: int
    etag: str
    """The version of the object, for `if_match`."""


@dataclass(frozen=True, slots=True)
class Written:
    """An acknowledged change."""

    etag: str
    """The version that the change made."""
    durability: str
    """The durability that the change has, which is at least the one that was requested."""
    is_new: bool
    """Whether the change created the object."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing."""

    objects: list[Info]
    next: str | None


def to_bytes(name: Name) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


def to_str(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Objects:
    """Builds the calls for the objects of a namespace."""

    namespace: Name
    durability: Durability | None

    def __post_init__(self) -> None:
        if not self.namespace:
            raise ValueError("the namespace is empty; it must have 1 to 255 bytes")

    def path(self, name: Name, namespace: Name | None = None) -> str:
        if not name:
            raise ValueError("an object's name is empty; it must have 1 to 255 bytes")
        return f"{self._root(namespace)}{quote(to_bytes(name))}"

    def _root(self, namespace: Name | None = None) -> str:
        return f"/{quote(to_bytes(namespace or self.namespace), safe='')}/"

    def _headers(self, durability: Durability | None = None, **more: str | None) -> dict[str, str]:
        """Returns the headers of a change."""
        return _present(durability=durability or self.durability, **more)

    def get(self, name: Name, start: int, stop: int | None, if_match: str | None) -> Call[Object]:
        wanted = None
        if start < 0 and stop is None:
            wanted = f"bytes={start}"
        elif start < 0 or (stop is not None and stop <= start):
            raise ValueError(
                f"the range is [{start}:{'' if stop is None else stop}]; it must have at least one "
                "byte, and only a range without an end may count from the end"
            )
        elif stop is not None:
            wanted = f"bytes={start}-{stop - 1}"
        elif start > 0:
            wanted = f"bytes={start}-"
        headers = _present(range=wanted, if_match=if_match)
        return Call("GET", self.path(name), partial(_object, slice(start, stop)), headers)

    def info(self, name: Name) -> Call[Info]:
        return Call("HEAD", self.path(name), partial(_info, to_str(to_bytes(name))))

    def put(
        self,
        name: Name,
        data: Buffer,
        create_only: bool,
        if_match: str | None,
        durability: Durability | None,
    ) -> Call[Written]:
        if create_only and if_match is not None:
            raise ValueError("create_only and if_match exclude each other")
        none_match = "*" if create_only else None
        headers = self._headers(durability, if_match=if_match, if_none_match=none_match)
        body = memoryview(data).cast("B")
        is_idempotent = not create_only and if_match is None
        return Call("PUT", self.path(name), _written, headers, body, is_idempotent)

    def delete(self, name: Name, if_match: str | None, durability: Durability | None) -> Call[None]:
        headers = self._headers(durability, if_match=if_match)
        return Call("DELETE", self.path(name), lambda _: None, headers)

    def copy(
        self,
        source: Name,
        destination: Name,
        to_namespace: Name | None,
        create_only: bool,
        if_match: str | None,
        durability: Durability | None,
    ) -> Call[Written]:
        headers = self._headers(
            durability,
            destination=self.path(destination, to_namespace),
            overwrite="F" if create_only else None,
            if_match=if_match,
        )
        return Call("COPY", self.path(source), _written, headers)

    def page(self, prefix: Name, after: Name, limit: int) -> Call[Page]:
        query = f"limit={limit}"
        for key, value in (("prefix", prefix), ("after", after)):
            if value:
                query += f"&{key}={quote(to_bytes(value), safe='')}"
        return Call("GET", f"{self._root()}?{query}", _page)


def children(page: Page, prefix: Name, last: str | None) -> tuple[list[str], Name | None]:
    """Returns the entries on a page of the directory `prefix`, without those equal to the entry
    `last` before it, and the name after which the next page begins, beyond all names of the last
    entry."""
    begin = to_bytes(prefix)
    found: list[str] = []
    for info in page.objects:
        child, slash, _ = to_bytes(info.name)[len(begin) :].partition(b"/")
        entry = to_str(child + slash)
        if entry != last:
            found.append(entry)
            last = entry
    if page.next is not None and last is not None and last.endswith("/"):
        return found, (begin + to_bytes(last)).ljust(NAME_BYTES_MAX, b"\xff")
    return found, page.next


def _present(**headers: str | None) -> dict[str, str]:
    """Returns the headers whose value is not `None`."""
    return {key.replace("_", "-"): value for key, value in headers.items() if value is not None}


def _object(wanted: slice, response: Response) -> Object:
    data = response.body
    size = len(data)
    if response.status == 206:
        size = int(response.headers["content-range"].rpartition("/")[2])
    else:
        # A server may answer a range with the whole object.
        data = data[wanted]
    return Object(data, response.headers["etag"], size)


def _info(name: str, response: Response) -> Info:
    return Info(name, int(response.headers["content-length"]), response.headers["etag"])


def _written(response: Response) -> Written:
    headers = response.headers
    return Written(headers["etag"], headers["durability"], response.status == 201)


def _page(response: Response) -> Page:
    value = json.loads(response.body)
    objects = [Info(_name(of, "name") or "", of["size_bytes"], of["etag"]) for of in value["objects"]]
    return Page(objects, _name(value, "next"))


def _name(value: Mapping[str, Any], key: str) -> str | None:
    """Returns a name, which is in Base64 if it is not UTF-8, or `None` for null."""
    if f"{key}_base64" in value:
        return to_str(base64.b64decode(value[f"{key}_base64"]))
    return None if value[key] is None else str(value[key])
