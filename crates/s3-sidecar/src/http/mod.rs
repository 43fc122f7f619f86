//! Messages as they come: headers, where messages end, bodies, and what a request names and asks for. What is known of objects, and
//! sockets, do not belong here.

pub(crate) mod body;
pub(crate) mod framing;
pub(crate) mod headers;
pub(crate) mod names;
pub(crate) mod read;
pub(crate) mod target;
