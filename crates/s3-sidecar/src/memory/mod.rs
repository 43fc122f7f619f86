//! Remembered objects: heads, absences, bytes, and the changes that invalidate them. This module
//! sends no requests: questions to the endpoint, and answers to clients, are elsewhere.

pub(crate) mod changes;
pub(crate) mod filling;
pub(crate) mod generation;
pub(crate) mod knowledge;
pub(crate) mod pieces;
pub(crate) mod tables;
pub(crate) mod wide;
pub(crate) mod writes;
