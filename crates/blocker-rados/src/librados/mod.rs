//! librados as futures and handles that own what they need: all `unsafe` of this crate is here. What an object of the
//! contract looks like in RADOS is not known here.

pub(crate) mod aio;
pub(crate) mod cluster;
pub(crate) mod ffi;
pub(crate) mod watch;
