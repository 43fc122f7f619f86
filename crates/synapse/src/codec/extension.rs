//! The extension area: how the protocol grows without a new version.
//!
//! ```text
//!   0       1       2       3       4
//!   +-------+-------+-------+-------+----------------+
//!   |C|    kind     |    length     | length bytes   |  repeated, to the end of the area
//!   +-------+-------+-------+-------+----------------+
//! ```
//!
//! `C`, the highest bit of the kind, means *critical*: a side that does not know the kind must not act on the
//! frame. Other unknown kinds are skipped.

use super::error::FrameError;

/// The bit of critical kinds: a side that does not know the kind must not act on the frame.
pub const CRITICAL: u16 = 0x8000;

/// The kinds of this version.
pub mod kind {
    use super::CRITICAL;

    /// Hello: 16 bytes client, `u16` lane. The session's name.
    pub const SESSION: u16 = 1;
    /// Hello and welcome: `u64` features requested, and granted.
    pub const FEATURES: u16 = 2;
    /// Hello and challenge: 32 bytes drawn at random.
    pub const NONCE: u16 = 3;
    /// Proofs: 32 bytes HMAC-SHA-256.
    pub const PROOF: u16 = 4;
    /// Welcome: 16 bytes, the server's instance.
    pub const INSTANCE: u16 = 5;
    /// Hello and welcome: `u32` slots, `u64` bytes in flight.
    pub const CREDITS: u16 = 6;
    /// Welcome: `u32` ms after which either side takes the other for dead.
    pub const PEER_TIMEOUT: u16 = 7;
    /// Welcome: the backend's capabilities.
    pub const CAPABILITIES: u16 = 8;
    /// Welcome: `u64` drawn at random when the session began. Another one is another session, whatever its
    /// id.
    pub const GENERATION: u16 = 11;
    /// Welcome: 16 bytes, the identity of the store that is served. Left out if the store has none.
    pub const STORE: u16 = 12;
    /// Welcome: the server's name, UTF-8.
    pub const SERVER_NAME: u16 = 13;
    /// Welcome: instances of 16 bytes each that ended with everything stored, the latest one first.
    pub const CLOSED: u16 = 14;
    /// Hello and goodbye: `u8` lowest and `u8` highest version that the sender supports.
    pub const VERSIONS: u16 = 15;
    /// Hello: the client's name, UTF-8.
    pub const CLIENT_NAME: u16 = 18;
    /// Hello: the name of the secret that the client proves to know.
    pub const KEY: u16 = 19;
    /// Requests of the contract: 16 bytes trace, 8 bytes span, both as W3C's Trace Context has them. Only of a
    /// request that is traced.
    pub const TRACE: u16 = 20;
    /// Hello: reserved for the start of TLS.
    pub const TLS: u16 = 9 | CRITICAL;
    /// Hello: reserved for the client's permissions.
    pub const PERMISSIONS: u16 = 10 | CRITICAL;
    /// Copy: `u8` condition and `u64` version that the source must meet.
    pub const FROM_CONDITION: u16 = 16 | CRITICAL;

    /// Whether a critical kind is known. TLS and permissions are not, in this version.
    pub(super) fn is_known(kind: u16) -> bool {
        kind & CRITICAL == 0 || kind == FROM_CONDITION
    }
}

/// A well-formed extension area.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Returns the extensions of `area` if their lengths add up and all critical ones are known.
    ///
    /// # Errors
    /// [`FrameError::Extensions`], [`FrameError::CriticalExtension`].
    pub fn check(area: &'a [u8]) -> Result<Self, FrameError> {
        let mut left = area;
        while !left.is_empty() {
            let (kind, _, rest) = split(left).ok_or(FrameError::Extensions)?;
            if !kind::is_known(kind) {
                return Err(FrameError::CriticalExtension { kind });
            }
            left = rest;
        }
        Ok(Self(area))
    }

    /// Returns the first extension of this kind.
    #[must_use]
    pub fn get(&self, kind: u16) -> Option<&'a [u8]> {
        let mut left = self.0;
        while let Some((found, value, rest)) = split(left) {
            if found == kind {
                return Some(value);
            }
            left = rest;
        }
        None
    }

    /// Returns the first extension of this kind, if it has exactly `N` bytes.
    #[must_use]
    pub fn get_array<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        self.get(kind)?.try_into().ok()
    }
}

fn split(area: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (fixed, rest) = area.split_first_chunk::<4>()?;
    let kind = u16::from_le_bytes([fixed[0], fixed[1]]);
    let length = usize::from(u16::from_le_bytes([fixed[2], fixed[3]]));
    let (value, rest) = rest.split_at_checked(length)?;
    Some((kind, value, rest))
}

/// Writes an extension area.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends an extension.
    ///
    /// # Panics
    /// If `value` is longer than 65 535 bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len()).expect("a short extension");
        self.0.extend_from_slice(&kind.to_le_bytes());
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value);
        self
    }

    /// Returns the area so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_found_and_unknown_ones_skipped() {
        let mut writer = Writer::default();
        writer.put(700, b"from the future").put(kind::FEATURES, &7_u64.to_le_bytes()).put(kind::NONCE, b"");
        let found = Extensions::check(writer.bytes()).unwrap();
        assert_eq!(found.get_array(kind::FEATURES).map(u64::from_le_bytes), Some(7));
        assert_eq!(found.get(kind::NONCE), Some(&b""[..]));
        assert_eq!(found.get(kind::PROOF), None);
        assert_eq!(found.get_array::<4>(kind::FEATURES), None);
    }

    #[test]
    fn an_area_with_wrong_lengths_or_an_unknown_critical_kind_is_refused() {
        let mut writer = Writer::default();
        writer.put(kind::NONCE, &[1; 32]);
        for len in 1..writer.bytes().len() {
            assert_eq!(
                Extensions::check(&writer.bytes()[..len]).unwrap_err(),
                FrameError::Extensions,
                "{len}"
            );
        }
        for kind in [kind::TLS, kind::PERMISSIONS, 700 | CRITICAL] {
            let mut writer = Writer::default();
            writer.put(kind, b"");
            let error = Extensions::check(writer.bytes()).unwrap_err();
            assert_eq!(error, FrameError::CriticalExtension { kind });
        }
    }
}
