//! cached-proto
