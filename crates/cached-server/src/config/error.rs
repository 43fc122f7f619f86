//! What is wrong with a configuration file, in one line.

pub use cached_config::ConfigError;
pub(crate) use cached_config::{Mistake, mistake, require, within};
