//! The configuration file that `--config` names: TOML, beside memcached's flags, which win over it.
//!
//! Each table is a struct that serde reads and writes, so that what is printed can be read again; its default is the built-in
//! one, taken from the code that uses it. A key that is unknown or cannot work stops the start with one line: which
//! file and key, what is wrong, what would be right. `deploy/cached.toml` shows every key, and a test compares what it shows
//! with what is built in.
//!
//! | module | what it owns |
//! |---|---|
//! | `file` | the file as a whole |
//! | `process`, `memcached` | a table each |
//! | `size` | sizes with units |
//! | `error` | the one line |

mod error;
mod file;
mod memcached;
mod process;
mod size;
#[cfg(test)]
mod tests;

pub use error::ConfigError;

pub(crate) use error::Mistake;
pub(crate) use file::File;

use crate::settings::Settings;

/// All that the program was told, flags and file together.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The process, and memcached's door.
    pub settings: Settings,
}

impl Config {
    /// As a file that says the same: what `--print-config` prints.
    ///
    /// # Errors
    /// For a value that TOML has no word for.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&File::from(self))
    }
}
