//! Sizes as values of keys.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

const EXPECTED: &str =
    "a size: a whole number of bytes, or of B, KiB, MiB, GiB or TiB in quotes, as in \"256 MiB\"";

impl Size {
    /// Returns the number of bytes as a `usize`, saturating.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Parses a size with its unit.
impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let parsed = || {
            let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
            let (number, unit) = text.split_at(digits);
            let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
            number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Size)
        };
        parsed().ok_or_else(|| format!("{text:?} is not {EXPECTED}"))
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Size {
        Size(bytes as u64)
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Size {
        Size(bytes)
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> u64 {
        size.0
    }
}

impl From<Size> for usize {
    fn from(size: Size) -> usize {
        size.to_usize()
    }
}

/// Writes the size in the largest unit of which it is a whole multiple; below a KiB, only the
/// number of bytes.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            UNITS.iter().find(|(_, shift)| *shift > 0 && self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((name, shift)) => write!(f, "{} {name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        if text.ends_with('B') { serializer.serialize_str(&text) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let size = match &value {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64().map(Size),
        };
        let kind = if value.is_string() { "string " } else { "" };
        size.ok_or_else(|| {
            D::Error::custom(format_args!("invalid value: {kind}{value}, expected {EXPECTED}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        let parsed = |text: &str| text.parse::<Size>().ok().map(|size| size.0);
        assert_eq!(parsed("256 MiB"), Some(256 << 20));
        assert_eq!(parsed("1GiB"), Some(1 << 30));
        assert_eq!(parsed("512 B"), Some(512));
        assert_eq!(parsed("0 KiB"), Some(0));
        let wrong = [
            "1m",
            "1 MB",
            "1.5 GiB",
            "-1 KiB",
            "KiB",
            "",
            "12",
            "1 KiB x",
            "1 kib",
            "16777216 TiB",
            " 1 KiB",
        ];
        for text in wrong {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for bytes in [1 << 10, 1 << 20, 3 << 30, 1 << 40, (1 << 40) + (1 << 10), 5 << 50] {
            let text = Size(bytes).to_string();
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        assert_eq!((Size(0).to_string(), Size(1000).to_string()), ("0".into(), "1000".into()));
    }
}
