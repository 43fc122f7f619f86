//! The intended differences between `cached` and memcached 1.6.45: `DIFFERENCES.md`, with one
//! heading per name.
//!
//! A script or test that expects different replies from the two servers names the difference. A
//! name that is missing in the list is an error, so the list stays complete.

/// The text of the list.
pub const LIST: &str = include_str!("../DIFFERENCES.md");

/// Returns the names of all listed differences.
pub fn names() -> impl Iterator<Item = &'static str> {
    LIST.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim)
}

/// Asserts that a difference is listed, and returns its name.
///
/// # Panics
/// Panics if the difference is not listed.
pub fn known(name: &str) -> &'static str {
    names().find(|known| *known == name).unwrap_or_else(|| panic!("{name} is not in DIFFERENCES.md"))
}
