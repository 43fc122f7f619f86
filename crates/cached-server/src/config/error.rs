//! What is wrong with a configuration file, in one line.

pub use cached_objects::ConfigError;
pub(crate) use cached_objects::{Mistake, mistake, require, within};
