//! cached-core
