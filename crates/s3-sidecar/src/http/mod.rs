//! HTTP messages: headers, framing, bodies, and the target and range of a request. Knowledge about
//! objects, and sockets, do not belong here.

pub(crate) mod body;
pub(crate) mod framing;
pub(crate) mod headers;
pub(crate) mod read;
pub(crate) mod target;
pub(crate) mod text;
