//! The messages of a lane.
