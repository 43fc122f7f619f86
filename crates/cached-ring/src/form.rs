//! The documents in which a map is kept.
