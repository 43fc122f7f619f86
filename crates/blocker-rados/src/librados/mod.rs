//! librados as futures and handles that own their memory: all `unsafe` code of this crate is here.
//! This module does not know how the contract's objects are represented.

pub(crate) mod aio;
pub(crate) mod cluster;
pub(crate) mod ffi;
pub(crate) mod watch;
