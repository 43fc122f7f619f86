//! Sizes and durations: the values of keys in a configuration file, and of `cachectl`'s arguments.
//! Both have one grammar: a whole number and a unit, with or without a space in between.
//! docs/configuration.md lists the units. memcached's flags have memcached's grammar, which is
//! elsewhere.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

/// The units of a size in bytes, the largest first. Names of one letter are the short forms.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("", 1),
    ("P", 1 << 50),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

/// The number of units with which sizes are printed, which are those above a byte.
const PRINTED_UNITS: usize = 5;

const SIZE_EXPECTED: &str =
    "a size: a whole number of bytes, or of B, KiB, MiB, GiB, TiB or PiB, as in \"256 MiB\"";

/// The units of a duration in microseconds.
const TIME_UNITS: [(&str, u64); 6] =
    [("us", 1), ("ms", 1_000), ("s", SEC), ("min", 60 * SEC), ("h", 3_600 * SEC), ("d", 86_400 * SEC)];

/// A second in microseconds.
const SEC: u64 = 1_000_000;

/// Parses a whole number and one of the units. Returns the product of number and unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // Without a unit, no space may follow.
    let is = |name: &str| name == unit || !name.is_empty() && name == unit.trim_start();
    let (_, factor) = units.iter().find(|(name, _)| is(name))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Parses the value of a key whose name states what it counts: a size if a part of the name is
/// `bytes`, a duration if it ends with `_us`, `_ms` or `_secs` (before `_min` or `_max`), otherwise
/// a whole number.
///
/// # Errors
/// Returns one line with the value and the expected form, without the key.
pub fn parse_number(key: &str, text: &str) -> Result<u64, String> {
    let number = || parse(text, &[("", 1)]).ok_or_else(|| format!("{text:?} is not a whole number"));
    parse_quantity(key, text).unwrap_or_else(number)
}

/// Like [`parse_number`]; `None` if the key counts neither bytes nor time.
pub(crate) fn parse_quantity(key: &str, text: &str) -> Option<Result<u64, String>> {
    if key.split('_').any(|part| part == "bytes") {
        return Some(text.parse().map(|Size(bytes)| bytes));
    }
    TimeUnit::of_key(key).map(|unit| unit.parse(text))
}

/// The unit of a duration that is a plain number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Secs,
}

impl TimeUnit {
    /// Returns the unit of a key, with which its name ends; `None` if the key is not a duration.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        let name = key.strip_suffix("_max").or_else(|| key.strip_suffix("_min")).unwrap_or(key);
        match name.rsplit_once('_')?.1 {
            "us" => Some(Self::Micros),
            "ms" => Some(Self::Millis),
            "secs" => Some(Self::Secs),
            _ => None,
        }
    }

    /// Parses a duration: a whole number of this unit, or a number with its own unit.
    ///
    /// # Errors
    /// Returns one line with the value and the expected form, also for a duration that is not a
    /// whole number of this unit.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        if let Some(number) = parse(text, &[("", 1)]) {
            return Ok(number);
        }
        let (name, micros) = match self {
            Self::Micros => ("microseconds", 1),
            Self::Millis => ("milliseconds", 1_000),
            Self::Secs => ("seconds", SEC),
        };
        match parse(text, &TIME_UNITS) {
            Some(duration) if duration.is_multiple_of(micros) => Ok(duration / micros),
            Some(_) => Err(format!("{text:?} is not a whole number of {name}")),
            None => Err(format!(
                "{text:?} is not a duration: a whole number of {name}, or of us, ms, s, min, h or d, as in \"5 min\""
            )),
        }
    }
}

impl Size {
    /// Returns the number of bytes as a `usize`, saturating.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        parse(text, &SIZE_UNITS).map(Size).ok_or_else(|| format!("{text:?} is not {SIZE_EXPECTED}"))
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
        let mut units = SIZE_UNITS.iter().take(PRINTED_UNITS);
        match units.find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes)) {
            Some((name, bytes)) => write!(f, "{} {name}", self.0 / bytes),
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
            D::Error::custom(format_args!("invalid value: {kind}{value}, expected {SIZE_EXPECTED}"))
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
        assert_eq!(parsed("12"), Some(12));
        assert_eq!(parsed("20G"), parsed("20 GiB"));
        let wrong = [
            "1m",
            "1 MB",
            "1.5 GiB",
            "-1 KiB",
            "KiB",
            "",
            "1 KiB x",
            "1 kib",
            "16777216 TiB",
            " 1 KiB",
            "1 ",
        ];
        for text in wrong {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_whole_numbers_of_the_unit() {
        for (unit, text, right) in [
            (TimeUnit::Secs, "30", Ok(30)),
            (TimeUnit::Secs, "30 s", Ok(30)),
            (TimeUnit::Secs, "2000ms", Ok(2)),
            (TimeUnit::Secs, "5 min", Ok(300)),
            (TimeUnit::Secs, "1 d", Ok(86_400)),
            (TimeUnit::Millis, "2 h", Ok(7_200_000)),
            (TimeUnit::Micros, "18446744073709551615", Ok(u64::MAX)),
            (TimeUnit::Micros, "250 ms", Ok(250_000)),
            (TimeUnit::Secs, "1500 ms", Err("\"1500 ms\" is not a whole number of seconds")),
            (TimeUnit::Millis, "1 us", Err("not a whole number of milliseconds")),
            (TimeUnit::Secs, "1.5 s", Err("\"5 min\"")),
            (TimeUnit::Secs, "1 m", Err("\"5 min\"")),
            (TimeUnit::Secs, "-1 s", Err("not a duration")),
            (TimeUnit::Secs, "s", Err("not a duration")),
            (TimeUnit::Secs, "", Err("not a duration")),
            (TimeUnit::Secs, "18446744073709551615 s", Err("not a duration")),
        ] {
            match (unit.parse(text), right) {
                (Err(error), Err(words)) => assert!(error.contains(words), "{text}: {error}"),
                (found, right) => assert_eq!(found, right.map_err(str::to_owned), "{text}"),
            }
        }
    }

    #[test]
    fn a_key_says_what_it_counts() {
        for (key, text, right) in [
            ("store_bytes_per_second_max", "50M", Some(50 << 20)),
            ("store_burst_ms", "1 s", Some(1000)),
            ("dirty_age_ms_max", "1 min", Some(60_000)),
            ("read_ahead_latency_us_min", "2 ms", Some(2000)),
            ("sweep_age_secs", "1 h", Some(3600)),
            ("retries", "3", Some(3)),
            ("retries", "3 s", None),
            ("msecs", "3 s", None),
            ("retries", "+3", None),
        ] {
            assert_eq!(parse_number(key, text).ok(), right, "{key}={text}");
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
