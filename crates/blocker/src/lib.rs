//! blocker
