//! The frames by which two nodes accept each other.
