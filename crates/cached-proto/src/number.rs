//! Numbers as memcached reads and writes them.
//!
//! There are two families. A *token* consists only of digits (an `i32` may begin with `-`) and has
//! at most 11 or 22 bytes; a lone `-` is zero. A *C number* (the flags and exptime of `set`)
//! follows `strtoul`/`strtol`: white space and a sign may come first, and any white space or NUL
//! ends it, so that `5\t9` is 5.

/// Reads a 32-bit unsigned token: digits only, at most 11 of them.
pub fn token_u32(token: &[u8]) -> Option<u32> {
    if token.len() > 11 {
        return None;
    }
    token.iter().try_fold(0u32, |sum, byte| sum.checked_mul(10)?.checked_add(u32::from(digit(*byte)?)))
}

/// Reads a 64-bit unsigned token: digits only, at most 22 of them.
pub fn token_u64(token: &[u8]) -> Option<u64> {
    if token.len() > 22 {
        return None;
    }
    token.iter().try_fold(0u64, |sum, byte| sum.checked_mul(10)?.checked_add(u64::from(digit(*byte)?)))
}

/// Reads a 32-bit signed token: an optional `-`, then digits; at most 11 bytes in all.
pub fn token_i32(token: &[u8]) -> Option<i32> {
    if token.len() > 11 {
        return None;
    }
    match token.split_first() {
        Some((b'-', digits)) => digits
            .iter()
            .try_fold(0i32, |sum, byte| sum.checked_mul(10)?.checked_sub(i32::from(digit(*byte)?))),
        _ => token
            .iter()
            .try_fold(0i32, |sum, byte| sum.checked_mul(10)?.checked_add(i32::from(digit(*byte)?))),
    }
}

/// Reads client flags at the start of `text`, as `safe_strtoul` does: reduced to 32 bits, and
/// negative only if the wrapped value has its top bit clear (`-18446744073709551615` is 1, `-1` is
/// refused).
pub fn c_flags(text: &[u8]) -> Option<u32> {
    let (negative, magnitude) = c_integer(text)?;
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    // As in memcached, the sign matters only if the result looks negative.
    if negative && value > i64::MAX as u64 {
        return None;
    }
    Some(value as u32)
}

/// Reads a signed number at the start of `text`, as `safe_strtol` does: a 64-bit range, reduced to
/// 32 bits.
pub fn c_i32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude) = c_integer(text)?;
    let value =
        if negative { 0i64.checked_sub_unsigned(magnitude)? } else { i64::try_from(magnitude).ok()? };
    Some(value as i32)
}

/// Appends `value` in decimal.
pub fn write_u64(out: &mut Vec<u8>, value: u64) {
    if value < 10 {
        // Flags are nearly always 0.
        out.push(b'0' + value as u8);
        return;
    }
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Returns sign and magnitude of the number that `strtoull` would read, provided that it is
/// followed by white space, NUL or the end.
fn c_integer(text: &[u8]) -> Option<(bool, u64)> {
    let mut rest = text;
    while let [first, tail @ ..] = rest
        && is_space(*first)
    {
        rest = tail;
    }
    let negative = rest.first() == Some(&b'-');
    if matches!(rest.first(), Some(b'-' | b'+')) {
        rest = &rest[1..];
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || !rest.get(digits).is_none_or(|byte| is_space(*byte) || *byte == 0) {
        return None;
    }
    let magnitude = rest[..digits]
        .iter()
        .try_fold(0u64, |sum, byte| sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')))?;
    Some((negative, magnitude))
}

fn digit(byte: u8) -> Option<u8> {
    let value = byte.wrapping_sub(b'0');
    (value < 10).then_some(value)
}

/// Returns whether C's `isspace` holds for a byte.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_digits_only() {
        assert_eq!(token_u32(b"4294967295"), Some(u32::MAX));
        for bad in [&b"4294967296"[..], b"+1", b"-1", b"1x", b" 1", b"000000000001"] {
            assert_eq!(token_u32(bad), None, "{bad:?}");
        }
        assert_eq!(token_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(token_u64(b"18446744073709551616"), None);
        assert_eq!(token_u64(b"00000000000000000000001"), None, "23 digits");
        assert_eq!(token_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(token_i32(b"2147483648"), None);
        assert_eq!(token_i32(b"-"), Some(0), "memcached takes a lone sign for zero");
        assert_eq!(token_i32(b"0001"), Some(1));
    }

    #[test]
    fn c_numbers_follow_strtoul() {
        assert_eq!(c_flags(b"5\t9 0"), Some(5));
        assert_eq!(c_flags(b"+5 "), Some(5));
        assert_eq!(c_flags(b"\t7\r\n"), Some(7));
        assert_eq!(c_flags(b"4294967296 "), Some(0), "reduced to 32 bits");
        assert_eq!(c_flags(b"-1 "), None);
        assert_eq!(c_flags(b"-0 "), Some(0));
        assert_eq!(c_flags(b"-18446744073709551615 "), Some(1));
        assert_eq!(c_flags(b"18446744073709551616 "), None);
        assert_eq!(c_flags(b"1\0"), Some(1));
        for bad in [&b"1x "[..], b"x", b"", b" ", b"-", b"+ 1", b"- 1"] {
            assert_eq!(c_flags(bad), None, "{bad:?}");
        }
        assert_eq!(c_i32(b"-1 "), Some(-1));
        assert_eq!(c_i32(b"9999999999 "), Some(9_999_999_999i64 as i32));
        assert_eq!(c_i32(b"9223372036854775807 "), Some(-1));
        assert_eq!(c_i32(b"-9223372036854775808 "), Some(0));
        assert_eq!(c_i32(b"9223372036854775808 "), None);
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for value in [0, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            write_u64(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
