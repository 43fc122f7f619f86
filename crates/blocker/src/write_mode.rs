//! How a cache treats writes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How a cache treats writes to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Write-back: acknowledged from the cache, stored later.
    Back,
    /// Write-through: done below with the durability that the request asks for before it is acknowledged;
    /// kept in the cache.
    #[default]
    Through,
    /// Write-around: done below with the durability that the request asks for; not kept in the cache.
    Around,
    /// Every change is refused with [`Error::Denied`]; reads are answered.
    ReadOnly,
}

/// Writes `back`, `through`, `around` or `read-only`.
impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Back => "back",
            Self::Through => "through",
            Self::Around => "around",
            Self::ReadOnly => "read-only",
        })
    }
}

/// Reads what `Display` writes.
///
/// ```
/// use blocker::WriteMode;
///
/// assert_eq!("back".parse(), Ok(WriteMode::Back));
/// ```
impl FromStr for WriteMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "back" => Ok(Self::Back),
            "through" => Ok(Self::Through),
            "around" => Ok(Self::Around),
            "read-only" => Ok(Self::ReadOnly),
            _ => {
                let known = "back, through, around and read-only";
                Err(Error::Invalid(format!("{text:?} is no write mode; there are {known}").into()))
            }
        }
    }
}
