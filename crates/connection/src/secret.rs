//! A secret that two parties share: a peer that does not know it is refused, and it is never sent.
//!
//! Both sides prove that they know the secret, by an HMAC-SHA-256 over every byte of the handshake
//! so far, each with a label of its own so that a proof cannot be reflected (a challenge-response
//! as in RFC 2104 and RFC 5802, without stretching: the secret must be a random key). So an
//! attacker on the path cannot change the handshake. Later data are neither secret nor protected;
//! that requires TLS, for whose channel binding (RFC 5929, RFC 9266) the proofs have a field.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The length of the shortest secret that is accepted, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;

/// A secret that two parties share. Its `Debug` output does not show it.
///
/// ```
/// use connection::{Secret, Transcript};
///
/// let secret = Secret::new(b"0d9f1c2a7b3e4f56\n")?;
/// assert_eq!(format!("{secret:?}"), "(a secret)");
/// assert!(Secret::new(b"short").is_err());
///
/// let mut handshake = Transcript::default();
/// handshake.push(b"hello, challenge");
/// let proof = secret.prove(b"example 1 client", &handshake);
/// assert!(secret.is_proof(&proof, b"example 1 client", &handshake));
/// assert!(!secret.is_proof(&proof, b"example 1 server", &handshake));
/// # Ok::<_, connection::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

/// The secret is shorter than [`SECRET_BYTES_MIN`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret of {len_bytes} bytes can be guessed; give at least {SECRET_BYTES_MIN} random ones, for example the \
     output of: openssl rand -hex 32"
)]
pub struct SecretError {
    /// The length of the secret.
    pub len_bytes: usize,
}

impl Secret {
    /// Returns the secret `bytes`, without one line end (`\n` or `\r\n`) after it.
    ///
    /// # Errors
    /// Returns [`SecretError`] if `bytes` is shorter than [`SECRET_BYTES_MIN`].
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(SecretError { len_bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// Returns a side's proof, computed over the handshake so far. `label` names the protocol and the
    /// side that proves, so that no proof serves for another one.
    #[must_use]
    pub fn prove(&self, label: &[u8], handshake: &Transcript) -> [u8; 32] {
        self.mac(label, handshake).finalize().into_bytes().into()
    }

    /// Returns whether the other side's [proof](Self::prove) is valid. The comparison takes constant
    /// time.
    #[must_use]
    pub fn is_proof(&self, proof: &[u8; 32], label: &[u8], handshake: &Transcript) -> bool {
        self.mac(label, handshake).verify(&(*proof).into()).is_ok()
    }

    fn mac(&self, label: &[u8], handshake: &Transcript) -> Hmac<Sha256> {
        // HMAC accepts a key of any length.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any key");
        mac.update(label);
        mac.update(&handshake.frames.clone().finalize());
        mac.update(handshake.channel_binding);
        mac
    }
}

/// The frames of a handshake, as they were sent, in order.
#[derive(Clone, Default)]
pub struct Transcript {
    frames: Sha256,
    /// The channel binding of the encrypted stream below the handshake; empty without encryption.
    channel_binding: &'static [u8],
}

impl Transcript {
    /// Appends the bytes of a frame.
    pub fn push(&mut self, frame: &[u8]) {
        self.frames.update(frame);
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transcript").finish_non_exhaustive()
    }
}

/// The comparison takes constant time.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&*other.0).fold(0, |all, (own, other)| all | (own ^ other));
        self.0.len() == other.0.len() && differing == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript_of(frames: &[&[u8]]) -> Transcript {
        let mut transcript = Transcript::default();
        frames.iter().for_each(|frame| transcript.push(frame));
        transcript
    }

    #[test]
    fn a_proof_holds_for_its_secret_its_label_and_its_handshake_only() {
        let secret = Secret::new(b"0123456789abcdef\n").unwrap();
        let exchanged = transcript_of(&[b"hello", b"challenge"]);
        let proof = secret.prove(b"example client", &exchanged);
        assert!(secret.is_proof(&proof, b"example client", &exchanged));
        assert!(!secret.is_proof(&proof, b"example server", &exchanged));
        let other = Secret::new(b"0123456789abcdeF").unwrap();
        assert!(!other.is_proof(&proof, b"example client", &exchanged));
        for changed in [&[&b"hello"[..]][..], &[b"hellO", b"challenge"], &[b"hello", b"challenge", b"more"]] {
            assert!(!secret.is_proof(&proof, b"example client", &transcript_of(changed)));
        }
        let mut bound = exchanged.clone();
        bound.channel_binding = b"a channel";
        assert!(!secret.is_proof(&proof, b"example client", &bound));
    }

    #[test]
    fn a_secret_has_a_least_length_and_is_never_shown() {
        assert_eq!(Secret::new(b"0123456789abcdef\r\n").unwrap(), Secret::new(b"0123456789abcdef").unwrap());
        for other in [&b"0123456789abcdeF"[..], b"0123456789abcdef0", b"0123456789abcdef0123456789abcdef"] {
            assert_ne!(Secret::new(other).unwrap(), Secret::new(b"0123456789abcdef").unwrap());
        }
        assert!(Secret::new(b"short").unwrap_err().to_string().contains("at least 16"));
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "(a secret)");
    }
}
