//! Sizes in the configuration file: a whole number of bytes, or text such as `"256 MiB"`.
//!
//! Only unambiguous units are taken, and only whole numbers of them: `"1m"` may mean a million or a mebibyte,
//! and `"0.3 GiB"` is no whole number of bytes.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

const EXPECTED: &str =
    "a size: a whole number of bytes, or of B, KiB, MiB, GiB or TiB in quotes, as in \"256 MiB\"";

impl Size {
    /// Parses a size with its unit.
    fn parse(text: &str) -> Option<Size> {
        let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Size(bytes))
    }

    /// Returns the number of bytes as a `usize`, saturating.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Size {
        Size(bytes as u64)
    }
}

/// Writes the size in the largest unit that it is a whole number of; below a KiB, the number of bytes alone.
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
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        Size::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        let parsed = |text| Size::parse(text).map(|size| size.0);
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
            assert_eq!(Size::parse(&text), Some(Size(bytes)), "{text}");
        }
        assert_eq!((Size(0).to_string(), Size(1000).to_string()), ("0".into(), "1000".into()));
    }
}
