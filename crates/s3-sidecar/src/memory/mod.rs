//! Remembered objects: heads, absences, bytes, and the changes that invalidate them. This module
//! sends no requests: questions to the endpoint, and answers to clients, are elsewhere.

pub(crate) mod changes;
pub(crate) mod deletes;
pub(crate) mod filling;
pub(crate) mod generation;
pub(crate) mod heads;
pub(crate) mod knowledge;
pub(crate) mod pieces;
pub(crate) mod table;
pub(crate) mod wide;
pub(crate) mod writes;
