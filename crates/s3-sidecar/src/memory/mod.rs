//! What is remembered of objects: their heads, that they are not there, their bytes, and the changes that make all of it void. It asks
//! nobody: questions to the endpoint, and answers to clients, are elsewhere.

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
