//! Errors in a configuration file, one line each.

pub use cached_config::{ConfigError, ConfigFileError};
pub(crate) use cached_config::{invalid, require, within};
