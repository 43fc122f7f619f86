//! The shared secret: a peer that does not know it is refused, and it is never sent.
//!
//! Both sides prove that they know the secret, by an HMAC-SHA-256 over every byte of the handshake
//! so far, each with a prefix of its own so that a proof cannot be reflected (a challenge-response
//! as in RFC 2104 and RFC 5802, without stretching: the secret must be a random key). So an
//! attacker on the path cannot change the handshake: versions, features, credits, the store's
//! identity. Later data are neither secret nor protected; that requires TLS, for whose channel
//! binding (RFC 5929, RFC 9266) the proofs have a field.

use std::fmt;
use std::sync::Arc;

use connection::Output;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The length of the shortest secret that is accepted, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;

/// A secret that client and server share. Its `Debug` output does not show it.
///
/// ```
/// use synapse::Secret;
///
/// let secret = Secret::new(b"0d9f1c2a7b3e4f56\n")?;
/// assert_eq!(format!("{secret:?}"), "(a secret)");
/// assert!(Secret::new(b"short").is_err());
/// # Ok::<_, synapse::SecretError>(())
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

    /// Returns this side's proof, computed over the handshake so far.
    pub(crate) fn proof(&self, role: Role, transcript: &Transcript) -> [u8; 32] {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Returns whether the other side's proof is valid. The comparison takes constant time.
    pub(crate) fn is_proof(&self, proof: &[u8; 32], role: Role, transcript: &Transcript) -> bool {
        self.mac(role, transcript).verify(&(*proof).into()).is_ok()
    }

    fn mac(&self, role: Role, transcript: &Transcript) -> Hmac<Sha256> {
        // HMAC accepts a key of any length.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any key");
        mac.update(match role {
            Role::Client => b"synapse 1 client",
            Role::Server => b"synapse 1 server",
        });
        mac.update(&transcript.frames.clone().finalize());
        mac.update(transcript.channel_binding);
        mac
    }

    /// Returns the proof of this secret for the handshake of another protocol: an HMAC-SHA-256 over
    /// `label` and the SHA-256 digest of `transcript`, the bytes exchanged so far. `label` names the
    /// protocol and the side that proves, so that no proof serves for another one.
    ///
    /// ```
    /// use synapse::Secret;
    ///
    /// let secret = Secret::new(b"0d9f1c2a7b3e4f56")?;
    /// let proof = secret.prove(b"example 1 client", b"hello, challenge");
    /// assert!(secret.is_proof_of(&proof, b"example 1 client", b"hello, challenge"));
    /// assert!(!secret.is_proof_of(&proof, b"example 1 server", b"hello, challenge"));
    /// # Ok::<_, synapse::SecretError>(())
    /// ```
    #[must_use]
    pub fn prove(&self, label: &[u8], transcript: &[u8]) -> [u8; 32] {
        self.labelled_mac(label, transcript).finalize().into_bytes().into()
    }

    /// Returns whether another side's [proof](Self::prove) is valid. The comparison takes constant
    /// time.
    #[must_use]
    pub fn is_proof_of(&self, proof: &[u8; 32], label: &[u8], transcript: &[u8]) -> bool {
        self.labelled_mac(label, transcript).verify(&(*proof).into()).is_ok()
    }

    fn labelled_mac(&self, label: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        // HMAC accepts a key of any length.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any key");
        mac.update(label);
        mac.update(&Sha256::digest(transcript));
        mac
    }
}

/// The side that sends a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The frames of a handshake, as they were sent, in order.
#[derive(Clone, Default)]
pub(crate) struct Transcript {
    frames: Sha256,
    /// The channel binding of the encrypted stream below the handshake; empty without encryption.
    channel_binding: &'static [u8],
}

impl Transcript {
    /// Appends a frame.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        self.frames.update(frame);
    }

    /// Appends the frame that `encode` writes, and queues it in `output`.
    pub(crate) fn send(&mut self, output: &mut Output, encode: impl FnOnce(&mut Vec<u8>)) {
        output.push_head(|out| {
            let start = out.len();
            encode(out);
            self.push(&out[start..]);
        });
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

/// Returns random bytes that cannot be guessed.
///
/// # Panics
/// Panics if the operating system has no random bytes: a handshake could not be secure.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("random bytes from the operating system");
    bytes
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
    fn a_proof_holds_for_its_secret_its_role_and_its_handshake_only() {
        let secret = Secret::new(b"0123456789abcdef\n").unwrap();
        let exchanged = transcript_of(&[b"hello", b"challenge"]);
        let proof = secret.proof(Role::Client, &exchanged);
        assert!(secret.is_proof(&proof, Role::Client, &exchanged));
        assert!(!secret.is_proof(&proof, Role::Server, &exchanged));
        assert!(secret.is_proof(&secret.proof(Role::Server, &exchanged), Role::Server, &exchanged));
        // docs/synapse-protocol.md contains this value.
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "a4ade4ac77c0b70efa34f2c95f7383cba831e0990f037d30d81f1e0829802df3");
        let other = Secret::new(b"0123456789abcdeF").unwrap();
        assert!(!other.is_proof(&proof, Role::Client, &exchanged));
        for changed in [&[&b"hello"[..]][..], &[b"hellO", b"challenge"], &[b"hello", b"challenge", b"more"]] {
            assert!(!secret.is_proof(&proof, Role::Client, &transcript_of(changed)));
        }
        let mut bound = exchanged.clone();
        bound.channel_binding = b"a channel";
        assert!(!secret.is_proof(&proof, Role::Client, &bound));
    }

    #[test]
    fn a_labelled_proof_is_none_of_synapse_and_holds_for_its_label_and_bytes_only() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let proof = secret.prove(b"example 1 dial", b"hello");
        assert!(secret.is_proof_of(&proof, b"example 1 dial", b"hello"));
        for (label, bytes) in [(&b"example 1 serve"[..], &b"hello"[..]), (b"example 1 dial", b"hellO")] {
            assert!(!secret.is_proof_of(&proof, label, bytes));
        }
        assert!(!Secret::new(b"0123456789abcdeF").unwrap().is_proof_of(&proof, b"example 1 dial", b"hello"));
        assert_ne!(secret.proof(Role::Client, &transcript_of(&[b"hello"])), proof);
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
