//! Keys and bodies as they lie in the bucket. Nothing here does I/O: bytes are decoded or refused, never trusted.

pub(crate) mod content;
pub(crate) mod head;
pub(crate) mod layout;
