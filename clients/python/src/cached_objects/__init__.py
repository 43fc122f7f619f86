"""Client of the object service of `cached` over HTTP.

`Client` and `AsyncClient` read and write objects, `ObjectMapping` shows them as a mapping,
`cached_objects.zarr.CachedStore` as a store of zarr, and `Admin` manages namespaces and volumes.
"""

from ._protocol import Durability, Info, Name, Object, Written
from .admin import (
    Admin,
    DamagedVolume,
    Namespace,
    Origin,
    Removed,
    Snapshot,
    Usage,
    Volume,
    VolumeSettings,
)
from .aio import AsyncClient
from .client import Client
from .errors import (
    CachedError,
    Conflict,
    Denied,
    InvalidRequest,
    NotFound,
    OutOfSpace,
    PreconditionFailed,
    RangeNotSatisfiable,
    ServerError,
    TooLarge,
    Unavailable,
)
from .mapping import ObjectMapping

__all__ = [
    "Admin",
    "AsyncClient",
    "CachedError",
    "Client",
    "Conflict",
    "DamagedVolume",
    "Denied",
    "Durability",
    "Info",
    "InvalidRequest",
    "Name",
    "Namespace",
    "NotFound",
    "Object",
    "ObjectMapping",
    "Origin",
    "OutOfSpace",
    "PreconditionFailed",
    "RangeNotSatisfiable",
    "Removed",
    "ServerError",
    "Snapshot",
    "TooLarge",
    "Unavailable",
    "Usage",
    "Volume",
    "VolumeSettings",
    "Written",
]
