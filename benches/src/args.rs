//! Command-line values with units, shared by all binaries: `64KiB`, `10-4096`, `1.5s`, `host:port` or a path.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use crate::keyspace::ValueBytes;
use crate::load::Target;

/// Parses a byte count: a number with an optional `KiB`, `MiB` or `GiB` (also `k`, `m`, `g`, all powers of 1024).
///
/// # Errors
/// The error quotes an argument of any other form.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("`{text}`: unknown unit `{unit}`, use KiB, MiB or GiB")),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a byte count"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses value sizes: one byte count, or `min-max`.
///
/// # Errors
/// The error quotes an argument that has neither form, or whose minimum is above its maximum.
pub fn parse_value_bytes(text: &str) -> Result<ValueBytes, String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let (min, max) = (parse_bytes(min)?, parse_bytes(max)?);
    if min > max {
        return Err(format!("`{text}`: the smallest size is above the largest"));
    }
    Ok(ValueBytes { min, max })
}

/// Parses a duration in seconds, `1.5` or `1.5s`, or milliseconds, `250ms`; at most one day.
///
/// # Errors
/// The error quotes an argument that is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("`{text}` is not a duration"))? * scale;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err(format!("`{text}` is not between 0 and one day"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a share as `0.1` or `10%`.
///
/// # Errors
/// The error quotes an argument that is not between 0 and 1.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map_err(|_| format!("`{text}` is not a share"))? * scale;
    if !(0.0..=1.0).contains(&share) {
        return Err(format!("`{text}` is not between 0 and 1"));
    }
    Ok(share)
}

/// Parses a server's address: text with a `/` is a unix socket, any other text `host:port`.
///
/// # Errors
/// The error quotes an argument whose host cannot be resolved.
pub fn parse_target(text: &str) -> Result<Target, String> {
    if text.contains('/') {
        return Ok(Target::Unix(PathBuf::from(text)));
    }
    let resolved: Option<SocketAddr> =
        text.to_socket_addrs().map_err(|error| format!("`{text}`: {error}"))?.next();
    resolved.map(Target::Tcp).ok_or_else(|| format!("`{text}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_durations_and_shares() {
        assert_eq!(parse_bytes("100"), Ok(100));
        assert_eq!(parse_bytes("64KiB"), Ok(65_536));
        assert_eq!(parse_bytes("2m"), Ok(2 << 20));
        assert!(parse_bytes("12 parsecs").is_err() && parse_bytes("").is_err());
        assert_eq!(parse_value_bytes("10-4KiB"), Ok(ValueBytes { min: 10, max: 4096 }));
        assert!(parse_value_bytes("20-10").is_err());
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse_duration("-1").is_err() && parse_duration("NaN").is_err());
        assert_eq!(parse_share("10%"), Ok(0.1));
        assert!(parse_share("1.1").is_err());
    }

    #[test]
    fn targets() {
        assert_eq!(parse_target("127.0.0.1:11211"), Ok(Target::Tcp("127.0.0.1:11211".parse().unwrap())));
        assert_eq!(parse_target("/run/c.sock"), Ok(Target::Unix("/run/c.sock".into())));
    }
}
