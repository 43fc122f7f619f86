"""The client of the object service."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Self

from ._protocol import Durability, Info, Name, Object, Objects, Written, children
from ._transport import Settings, Transport
from .errors import NotFound

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_OBJECTS = 1000


class Client:
    """A client of one namespace, for any number of threads. It connects with its first request.

    - `url` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.
    - `auth` is the name and the secret of a key.
    - `timeout` limits, in seconds, the start of a connection and each wait for the server.
    - `durability` is that of changes that request no other; without it the namespace's applies.
    - `connections_max` calls run at a time; others wait, for `timeout` seconds at most.
    - `tls` replaces Python's default settings for TLS clients.

    A call is repeated up to `retries` times: if there was no connection; a read, or a `put` without
    a condition, if the server refused it with `Retry-After` (of at most five seconds); a read if its
    connection broke. Nothing is repeated after a timeout, and no other change whose outcome is
    unknown, which `Unavailable` states.

    Each method raises a `CachedError` if it fails, and `ValueError` for a mistake that is seen
    before the request. Clients with equal parameters are equal; a client can be pickled, secret
    included.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: Name,
        auth: tuple[str, str] | None = None,
        timeout: float = 30.0,
        durability: Durability | None = None,
        retries: int = 2,
        connections_max: int = 32,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = Settings(url, auth, None, timeout, retries, connections_max, tls)
        self._objects = Objects(namespace, durability)
        self._transport = Transport(self._settings)

    @property
    def namespace(self) -> Name:
        return self._objects.namespace

    @property
    def connections_max(self) -> int:
        return self._settings.connections_max

    def get(
        self, name: Name, start: int = 0, stop: int | None = None, *, if_match: str | None = None
    ) -> Object:
        """Reads the bytes `start` to `stop` of an object, as in a slice: without `stop` to its
        end, with a negative `start` and no `stop` the last bytes.

        A range that ends after the object's end is shortened; one that begins there fails with
        `RangeNotSatisfiable`. With `if_match`, reads only the version with this `etag`.
        """
        return self._transport.run(self._objects.get(name, start, stop, if_match))

    def info(self, name: Name) -> Info:
        """Returns the size and version of an object."""
        return self._transport.run(self._objects.info(name))

    def exists(self, name: Name) -> bool:
        """Returns whether there is an object with this name."""
        try:
            self.info(name)
        except NotFound:
            return False
        return True

    def put(
        self,
        name: Name,
        data: Buffer,
        *,
        create_only: bool = False,
        if_match: str | None = None,
        durability: Durability | None = None,
    ) -> Written:
        """Writes a whole object: `bytes`, or any other contiguous buffer, which is not copied.

        With `create_only` only if there is no object with this name, with `if_match` only if the
        object has this `etag` (`"*"`: any); otherwise the call fails with `PreconditionFailed`.
        Returns once the object has the requested `durability`.
        """
        return self._transport.run(self._objects.put(name, data, create_only, if_match, durability))

    def delete(
        self,
        name: Name,
        *,
        missing_ok: bool = False,
        if_match: str | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Deletes an object. With `missing_ok` it need not exist."""
        try:
            self._transport.run(self._objects.delete(name, if_match, durability))
        except NotFound:
            if not missing_ok:
                raise

    def copy(
        self,
        source: Name,
        destination: Name,
        *,
        to_namespace: Name | None = None,
        create_only: bool = False,
        if_match: str | None = None,
        durability: Durability | None = None,
    ) -> Written:
        """Copies an object inside the server, into another namespace if one is named.

        `create_only` is about the destination, `if_match` about the source.
        """
        call = self._objects.copy(source, destination, to_namespace, create_only, if_match, durability)
        return self._transport.run(call)

    def list(self, prefix: Name = "", *, after: Name = "") -> Iterator[Info]:
        """Returns all objects whose names begin with `prefix` and follow `after`, in the order of
        their names' bytes. The listing is requested page by page while it is read: changes made
        meanwhile may or may not be in it."""
        return chain.from_iterable(self._list(prefix, after=after))

    def _list(self, prefix: Name = "", *, after: Name = "") -> Iterator[Sequence[Info]]:
        at: Name | None = after
        while at is not None:
            page = self._transport.run(self._objects.page(prefix, at, PAGE_OBJECTS))
            yield page.objects
            at = page.next

    def children(self, prefix: Name = "") -> Iterator[str]:
        """Returns the entries of a directory: the rest of each name that begins with `prefix`, up
        to and including its first slash, once. Of a directory below it, at most one page is
        requested."""
        return chain.from_iterable(self._children(prefix))

    def _children(self, prefix: Name = "") -> Iterator[Sequence[str]]:
        at: Name | None = ""
        last: str | None = None
        while at is not None:
            page = self._transport.run(self._objects.page(prefix, at, PAGE_OBJECTS))
            entries, at = children(page, prefix, last)
            yield entries
            last = entries[-1] if entries else last

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Client):
            return NotImplemented
        return (self._settings, self._objects) == (other._settings, other._objects)

    def __hash__(self) -> int:
        return hash((self._settings, self._objects))

    def __repr__(self) -> str:
        return f"Client({self._settings.url!r}, namespace={self.namespace!r})"

    def __getstate__(self) -> tuple[Settings, Objects]:
        return self._settings, self._objects

    def __setstate__(self, state: tuple[Settings, Objects]) -> None:
        self._settings, self._objects = state
        self._transport = Transport(self._settings)
