"""The objects of a namespace as a Python mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from .client import Client
from .errors import NotFound


class ObjectMapping(MutableMapping[str, bytes]):
    """The objects whose names begin with `prefix`, by the rest of their names.

    For libraries that take a `MutableMapping` of bytes. Every operation is a request; `len`,
    iteration and `clear` list all objects. `setdefault`, `pop` and `popitem` are several requests,
    between which other clients can change the object: use `create_only` and `if_match` of the
    client where that matters.
    """

    def __init__(self, client: Client, prefix: str = "") -> None:
        self.client = client
        self.prefix = prefix

    def __getitem__(self, key: str) -> bytes:
        try:
            return self.client.get(self._name(key)).data
        except NotFound:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        self.client.put(self._name(key), value)

    def __delitem__(self, key: str) -> None:
        try:
            self.client.delete(self._name(key))
        except NotFound:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.client.exists(self._name(key))

    def __iter__(self) -> Iterator[str]:
        return (info.name[len(self.prefix) :] for info in self.client.list(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        for key in self:
            self.client.delete(self._name(key), missing_ok=True)

    def __repr__(self) -> str:
        return f"ObjectMapping({self.client!r}, prefix={self.prefix!r})"

    def _name(self, key: str) -> str:
        return self.prefix + key
