//! Self-describing values: key, version and checksum first, then bytes that follow from key and version.
//!
//! A reader can check whether a value belongs to the key, whether it is complete, and which version it is.

/// Returns the value of a key's version, about `bytes` long (and never shorter than its head).
pub fn make(key: &str, version: u64, bytes: usize) -> Vec<u8> {
    let body_bytes = bytes.saturating_sub(key.len() + 50);
    let body = body(key, version, body_bytes);
    let mut value = format!("{key} {version} {body_bytes} {:016x}\n", sum(&body)).into_bytes();
    value.extend(body);
    value
}

/// Returns the version in a value of a key.
///
/// # Errors
/// Returns the problem: another key's value, a torn value, or bytes that are not such a value.
pub fn version(key: &str, value: &[u8]) -> Result<u64, String> {
    let shown = || value[..value.len().min(80)].escape_ascii().to_string();
    let end = value.iter().position(|byte| *byte == b'\n').ok_or_else(|| format!("no head: {}", shown()))?;
    let head = String::from_utf8_lossy(&value[..end]).into_owned();
    let words: Vec<&str> = head.split(' ').collect();
    let [of, version, bytes, checksum] = words[..] else { return Err(format!("a broken head: {}", shown())) };
    if of != key {
        return Err(format!("the value of another key: {head}"));
    }
    let (Ok(version), Ok(bytes)) = (version.parse::<u64>(), bytes.parse::<usize>()) else {
        return Err(format!("a broken head: {head}"));
    };
    let found = &value[end + 1..];
    let expected = body(key, version, bytes);
    if found != expected {
        let at = found.iter().zip(&expected).take_while(|(found, expected)| found == expected).count();
        let lengths = format!("{} of {bytes} bytes", found.len());
        return Err(format!("torn: {head}: {lengths}, other from byte {at} on, sum {:016x}", sum(found)));
    }
    if format!("{:016x}", sum(found)) != checksum {
        return Err(format!("a wrong checksum: {head}"));
    }
    Ok(version)
}

/// Returns bytes that follow from key and version only.
fn body(key: &str, version: u64, bytes: usize) -> Vec<u8> {
    let mut state = key.bytes().fold(version | 1 << 63, |state, byte| mix(state ^ u64::from(byte)));
    let mut body = Vec::with_capacity(bytes + 8);
    while body.len() < bytes {
        state = mix(state);
        body.extend(state.to_le_bytes());
    }
    body.truncate(bytes);
    body
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64 + 1, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum ^ u64::from_le_bytes(word))
    })
}

fn mix(mut word: u64) -> u64 {
    word ^= word >> 31;
    word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_value_is_noticed() {
        for bytes in [0, 100, 5000] {
            let value = make("key", 7, bytes);
            assert_eq!(version("key", &value), Ok(7));
            assert!(version("kez", &value).is_err(), "foreign");
            assert!(version("key", &value[..value.len() - 1]).is_err(), "short");
            assert!(version("key", &[&value[..], b"x"].concat()).is_err(), "long");
        }
        let (old, new) = (make("key", 7, 3000), make("key", 8, 3000));
        assert!(version("key", &[&new[..1500], &old[1500..]].concat()).is_err(), "torn");
    }
}
