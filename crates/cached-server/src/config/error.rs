//! Errors in a configuration file, one line each.

pub use cached_config::ConfigFileError;
pub(crate) use cached_config::{ConfigError, invalid, require, within};
