//! What is wrong with a configuration file, in one line.

pub use cached_config::ConfigFileError;
pub(crate) use cached_config::{ConfigError, invalid, require, within};
