//! cached-server
