"""Sends calls over HTTP: connections, time limits and retries.

What a call means is not known here: `_protocol` and `admin` build the calls.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import random
import re
import selectors
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Generic, NamedTuple, Protocol, TypeVar

from .errors import BY_STATUS, CachedError, ServerError, Unavailable

T = TypeVar("T")

RETRY_AFTER_MAX = 5.0
"""The longest wait in seconds that a server can request; after a longer one the call fails."""

IDLE_SECONDS_MAX = 20.0
"""The age of connections that are not used again: the server closes them after 60 s by default,
and a request at that moment would fail."""

Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the function that reads its response (of a status below 400)."""

    method: str
    target: str
    parse: Callable[[Response], T]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview | None = None
    is_idempotent: bool = False
    """Whether the same call once more, after a refusal, leads to the same state."""

    @property
    def is_read(self) -> bool:
        return self.method in ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about the server and the connections that a client was created with."""

    url: str
    auth: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    timeout: float = 30.0
    retries: int = 2
    connections_max: int = 32
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^/?#@]+/?|unix:/.+", self.url):
            right = "http://HOST:PORT, https://HOST:PORT or unix:/PATH"
            raise ValueError(f"the server's address is {self.url!r}; it must be {right}")

    def headers(self) -> dict[str, str]:
        headers = {"user-agent": "cached-objects/0.1.0"}
        if self.auth is not None:
            pair = base64.b64encode(":".join(self.auth).encode()).decode()
            headers["authorization"] = f"Basic {pair}"
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers

    def connection(self) -> HTTPConnection:
        scheme, _, rest = self.url.partition(":")
        if scheme == "unix":
            return UnixConnection(rest, self.timeout)
        host = rest.strip("/")
        if scheme == "https":
            return HTTPSConnection(host, timeout=self.timeout, context=self.tls)
        return HTTPConnection(host, timeout=self.timeout)


class UnixConnection(HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Idle(NamedTuple):
    connection: HTTPConnection
    since: float

    def is_open(self) -> bool:
        """Returns whether the server has not closed the connection, nor is about to."""
        if time.monotonic() - self.since > IDLE_SECONDS_MAX:
            return False
        with Selector() as selector:
            selector.register(self.connection.sock, selectors.EVENT_READ)
            return not selector.select(0)


class Transport:
    """Sends calls from any number of threads. A connection is used by one thread at a time, and
    kept for the next call."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._headers = settings.headers()
        # The connection used last is used next, so that a server can close the others.
        self._idle: list[Idle] = []
        # A client that nobody closes leaves no open sockets behind.
        weakref.finalize(self, close_all, self._idle)
        self.begin()
        forked.add(self)

    def begin(self) -> None:
        """Begins without connections: those of a process are not shared with its children."""
        close_all(self._idle)
        self._slots = threading.BoundedSemaphore(self.settings.connections_max)

    def run(self, call: Call[T]) -> T:
        """Sends a call, repeatedly if need be, and returns its result."""
        for attempt in itertools.count(1):
            try:
                return self._once(call)
            except Unavailable as error:
                wait = error.retry_after
                if wait is None or wait > RETRY_AFTER_MAX or attempt > self.settings.retries:
                    raise
                # A change that was refused for now may have been made in part.
                if error.status is not None and not (call.is_read or call.is_idempotent):
                    raise
            time.sleep(max(wait, math.ldexp(0.1, attempt) * random.uniform(0.5, 1.0)))
        raise AssertionError("unreachable")

    def _once(self, call: Call[T]) -> T:
        url, timeout = self.settings.url, self.settings.timeout
        if not self._slots.acquire(timeout=timeout):
            count = self.settings.connections_max
            raise Unavailable(f"all {count} connections to {url} were in use for {timeout} s")
        try:
            response = self._exchange(call)
        finally:
            self._slots.release()
        if response.status >= 400:
            raise refusal(call, response)
        try:
            return call.parse(response)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{call.method} {call.target}"
            line = f"{what}: the response is not one of this interface: {error!r}"
            raise ServerError(line, status=response.status) from error

    def _exchange(self, call: Call[T]) -> Response:
        connection = self._connected()
        is_kept = False
        try:
            is_sent = self._send(connection, call)
            with connection.getresponse() as received:
                headers = {name.lower(): value for name, value in received.getheaders()}
                response = Response(received.status, headers, received.read())
                is_kept = is_sent and not received.will_close
        except (OSError, HTTPException) as error:
            raise self._broken(call, error) from error
        finally:
            if is_kept:
                self._idle.append(Idle(connection, time.monotonic()))
            else:
                connection.close()
        return response

    def _send(self, connection: HTTPConnection, call: Call[T]) -> bool:
        """Returns whether the whole request is sent: a server may refuse it before its end."""
        try:
            headers = {**self._headers, **call.headers}
            connection.request(call.method, call.target, call.body, headers)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _connected(self) -> HTTPConnection:
        """Returns a connection that the server has not closed, as far as is known here."""
        while (idle := taken(self._idle)) is not None:
            if idle.is_open():
                return idle.connection
            idle.connection.close()
        connection = self.settings.connection()
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            is_repeatable = not isinstance(error, (TimeoutError, ssl.SSLError))
            line = f"cannot connect to {self.settings.url}: {error or 'timed out'}"
            raise Unavailable(line, retry_after=0.0 if is_repeatable else None) from error
        return connection

    def _broken(self, call: Call[T], error: OSError | HTTPException) -> Unavailable:
        is_timeout = isinstance(error, TimeoutError)
        if is_timeout:
            line = f"{self.settings.url} has not answered for {self.settings.timeout} s"
        else:
            line = f"the connection to {self.settings.url} broke: {error or type(error).__name__}"
        if not call.is_read:
            line += "; the change may have been made, or may still be made"
            return Unavailable(line, is_outcome_unknown=True)
        return Unavailable(line, retry_after=None if is_timeout else 0.0)

    def close(self) -> None:
        close_all(self._idle)


class Forked(Protocol):
    def begin(self) -> None: ...


forked: weakref.WeakSet[Forked] = weakref.WeakSet()
"""What begins anew in a forked process."""


def begin_all() -> None:
    for each in forked:
        each.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_all)


def taken(connections: list[Idle]) -> Idle | None:
    try:
        return connections.pop()
    except IndexError:
        return None


def close_all(connections: list[Idle]) -> None:
    while (idle := taken(connections)) is not None:
        idle.connection.close()


def refusal(call: Call[T], response: Response) -> CachedError:
    """Returns the exception for a response of status 400 or above."""
    status, line = response.status, response.body.decode(errors="replace").strip()
    if response.headers.get("content-type", "").startswith("application/json"):
        try:
            line = str(json.loads(line)["error"])
        except (ValueError, KeyError, TypeError):
            pass
    # A response to HEAD has no line.
    line = line or f"the server has answered with status {status}"
    if status == 504:
        return Unavailable(line, status=status, is_outcome_unknown=True)
    if status in (408, 503):
        after = response.headers.get("retry-after", "")
        is_number = status == 503 and after.isascii() and after.isdigit()
        wait = float(after) if is_number else None
        # A change that is not yet as durable as requested has been made, and is answered with 503.
        is_unknown = status == 503 and not call.is_read
        return Unavailable(line, status=status, retry_after=wait, is_outcome_unknown=is_unknown)
    return BY_STATUS.get(status, ServerError)(line, status=status)
