//! The ways of a read from its request to its answer: the conditions of the client, what memory has, and what the endpoint is asked.
//! Sockets, and requests that change something, do not belong here.

pub(crate) mod conditions;
pub(crate) mod fresh;
pub(crate) mod gateway;
pub(crate) mod passing;
pub(crate) mod ready;
pub(crate) mod serving;
