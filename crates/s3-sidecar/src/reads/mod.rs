//! The paths of a read from request to response: the client's conditions, the content of memory,
//! and requests to the endpoint. Sockets, and requests that change objects, do not belong here.

pub(crate) mod conditions;
pub(crate) mod fresh;
pub(crate) mod gateway;
pub(crate) mod ready;
pub(crate) mod serving;
