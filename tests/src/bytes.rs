//! Conversion between bytes and text: `\r \n \t \0 \\ \xNN`, and base64 for recorded vectors.

/// The number of bytes at each end of a byte string that a failure message shows.
const SHOW_BYTES_MAX: usize = 1200;

/// Returns bytes as one printable line, without the middle of a long byte string.
pub fn show(bytes: &[u8]) -> String {
    if bytes.len() <= SHOW_BYTES_MAX {
        return escape(bytes);
    }
    let half = SHOW_BYTES_MAX / 2;
    let left_out = bytes.len() - 2 * half;
    format!("{}…({left_out} bytes left out)…{}", escape(&bytes[..half]), escape(&bytes[bytes.len() - half..]))
}

/// Returns bytes as one printable line, in full; [`unescape`] is its inverse.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// Returns the bytes of an escaped text.
///
/// # Errors
/// Returns a message that names the invalid escape.
pub fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'r') => out.push(b'\r'),
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'0') => out.push(0),
            Some(b'x') => {
                let digits = [rest.next().unwrap_or(b'?'), rest.next().unwrap_or(b'?')];
                let digits = std::str::from_utf8(&digits).unwrap_or("??");
                out.push(u8::from_str_radix(digits, 16).map_err(|_| format!("bad escape \\x{digits}"))?);
            }
            Some(other @ (b'\\' | b'{' | b'}' | b' ' | b'"')) => out.push(other),
            other => return Err(format!("bad escape \\{:?} in {text}", other.map(char::from))),
        }
    }
    Ok(out)
}

/// Decodes hexadecimal digits; blanks between them are allowed.
///
/// # Errors
/// Returns a message that names the invalid digit.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return Err(format!("odd number of hexadecimal digits in {text}"));
    }
    digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| format!("not hexadecimal: {text}"))
}

/// Decodes standard base64, as the recorded vectors use it.
///
/// # Errors
/// Returns a message that names the invalid character.
pub fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut bits_count) = (0u32, 0);
    for byte in text.bytes().filter(|&byte| byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(format!("not base64: {:?}", char::from(byte))),
        };
        bits = (bits << 6) | u32::from(value);
        bits_count += 6;
        if bits_count >= 8 {
            bits_count -= 8;
            out.push(((bits >> bits_count) & 0xff) as u8);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)).unwrap(), all);
        assert!(unescape("\\q").is_err());
    }

    #[test]
    fn base64_and_hex() {
        assert_eq!(from_base64("Z2V0IGsK").unwrap(), b"get k\n");
        assert_eq!(from_base64("Cg==").unwrap(), b"\n");
        assert_eq!(from_hex("80 0a").unwrap(), [0x80, 0x0a]);
        assert!(from_hex("8").is_err());
    }
}
