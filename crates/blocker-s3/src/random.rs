//! Random numbers from the operating system: next to a request over the network that costs nothing.

/// Returns a random number.
///
/// # Panics
/// If the operating system has no random bytes.
pub(crate) fn number() -> u64 {
    getrandom::u64().expect("random bytes from the operating system")
}

/// Returns a random number that is drawn only once.
///
/// # Panics
/// As [`number`].
pub(crate) fn unique() -> u128 {
    u128::from(number()) << 64 | u128::from(number())
}

/// Returns a random part of a delay: half of it at least, and at most all.
///
/// # Panics
/// As [`number`].
pub(crate) fn part() -> f64 {
    0.5 + 0.5 * (number() >> 11) as f64 / (1_u64 << 53) as f64
}
