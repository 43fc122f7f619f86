"""The exceptions of this package, by the kind of failure."""

from __future__ import annotations


class CachedError(Exception):
    """A request failed.

    `line` is the server's line, which names the mistake and the correct form; for a failed
    connection it is this package's. `status` is the HTTP status, or `None` without a response.
    """

    def __init__(self, line: str, *, status: int | None = None) -> None:
        super().__init__(line)
        self.line = line
        self.status = status


class InvalidRequest(CachedError):
    """The request has a mistake, which `line` names (400, 405, 431)."""


class Denied(CachedError):
    """The credentials are wrong or missing, or their rights do not cover the request (401, 403)."""


class NotFound(CachedError):
    """There is no such object, volume, snapshot or namespace (404)."""


class Conflict(CachedError):
    """The state permits no such change: a volume exists or is in use, data are not stored, or
    another writer has taken over the namespace (409)."""


class PreconditionFailed(CachedError):
    """The object is not as `if_match` or `create_only` requires; nothing has changed (412)."""


class TooLarge(CachedError):
    """The object is larger than the server accepts, its `object_bytes_max` (413)."""

    def __str__(self) -> str:
        way = "larger objects go through the S3 sidecar: docs/s3-sidecar.md of cached"
        return f"{self.line}; {way}"


class RangeNotSatisfiable(CachedError):
    """The range begins at or after the end of the object (416)."""


class OutOfSpace(CachedError):
    """The store is full, or the namespace's quota is used up (507)."""


class ServerError(CachedError):
    """The server failed, or its response is not one of this interface."""


class Unavailable(CachedError):
    """The server or its store cannot serve the request at present (408, 503, 504, no response).

    `retry_after` is the time in seconds after which another attempt may succeed, if that is known.
    `is_outcome_unknown` states that a change may have been made, or may still be made.
    """

    def __init__(
        self,
        line: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        is_outcome_unknown: bool = False,
    ) -> None:
        super().__init__(line, status=status)
        self.retry_after = retry_after
        self.is_outcome_unknown = is_outcome_unknown


BY_STATUS: dict[int, type[CachedError]] = {
    400: InvalidRequest,
    401: Denied,
    403: Denied,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    412: PreconditionFailed,
    413: TooLarge,
    416: RangeNotSatisfiable,
    431: InvalidRequest,
    507: OutOfSpace,
}
