//! Random numbers from the operating system. Compared with a request over the network, drawing them
//! costs nothing.

/// Returns a random number.
///
/// # Panics
/// Panics if the operating system has no random bytes.
pub(crate) fn number() -> u64 {
    getrandom::u64().expect("random bytes from the operating system")
}

/// Returns a random number that is never drawn again.
///
/// # Panics
/// Panics if the operating system has no random bytes.
pub(crate) fn unique() -> u128 {
    u128::from(number()) << 64 | u128::from(number())
}

/// Returns a random fraction of a delay, between one half and one.
///
/// # Panics
/// Panics if the operating system has no random bytes.
pub(crate) fn part() -> f64 {
    0.5 + 0.5 * (number() >> 11) as f64 / (1_u64 << 53) as f64
}
