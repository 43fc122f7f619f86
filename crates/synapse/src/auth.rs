//! The shared secret: who does not know it is not let in, and it never crosses the wire.
//!
//! Both sides prove that they know it, by HMAC-SHA-256 over every byte that was said before, each with a word of its
//! own so that a proof cannot be sent back (a challenge-response as in RFC 2104 and RFC 5802, without the
//! password's stretching: the secret is to be a random key). So nothing in the greeting can be changed on the way:
//! versions, features, credits, the store's identity. What this leaves out: everything after the greeting is neither
//! secret nor protected against change by an attacker on the path; that is TLS's work, for whose channel binding
//! (RFC 5929, RFC 9266) the proofs have a place.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The shortest secret that is taken.
pub const SECRET_BYTES_MIN: usize = 16;

/// A secret that client and server share. Never shown.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Takes `bytes` as the secret; a line end after it does not belong to it.
    ///
    /// # Errors
    /// What to mend, if it is shorter than [`SECRET_BYTES_MIN`].
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < SECRET_BYTES_MIN {
            let count = bytes.len();
            return Err(format!(
                "a secret of {count} bytes can be guessed; give at least {SECRET_BYTES_MIN} random ones, \
                 for example the output of: openssl rand -hex 32"
            ));
        }
        Ok(Self(bytes.into()))
    }

    /// Reads it from a file.
    ///
    /// # Errors
    /// What to mend.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::new(&bytes).map_err(|text| format!("{}: {text}", path.display()))
    }

    /// The proof of this side, over the greeting so far.
    pub(crate) fn proof(&self, role: Role, greeting: &Transcript) -> [u8; 32] {
        self.mac(role, greeting).finalize().into_bytes().into()
    }

    /// Whether the other side's proof is right, in constant time.
    pub(crate) fn is_proof(&self, proof: &[u8; 32], role: Role, greeting: &Transcript) -> bool {
        self.mac(role, greeting).verify(&(*proof).into()).is_ok()
    }

    fn mac(&self, role: Role, greeting: &Transcript) -> Hmac<Sha256> {
        // A key of any length is a key.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any key");
        mac.update(match role {
            Role::Client => b"synapse 1 client",
            Role::Server => b"synapse 1 server",
        });
        mac.update(&greeting.frames.clone().finalize());
        mac.update(greeting.channel_binding);
        mac
    }
}

/// Which side proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The frames of a greeting, as they were sent, in order.
#[derive(Clone, Default)]
pub(crate) struct Transcript {
    frames: Sha256,
    /// What binds the greeting to the encrypted channel below it; empty where there is none.
    channel_binding: &'static [u8],
}

impl Transcript {
    /// Appends a frame.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        self.frames.update(frame);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

/// Bytes nobody can guess.
///
/// # Panics
/// If the operating system has no random bytes: nothing that needs a secret can go on then.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("random bytes from the operating system");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(frames: &[&[u8]]) -> Transcript {
        let mut transcript = Transcript::default();
        frames.iter().for_each(|frame| transcript.push(frame));
        transcript
    }

    #[test]
    fn a_proof_holds_for_its_secret_its_role_and_its_greeting_only() {
        let secret = Secret::new(b"0123456789abcdef\n").unwrap();
        let said = greeting(&[b"hello", b"challenge"]);
        let proof = secret.proof(Role::Client, &said);
        assert!(secret.is_proof(&proof, Role::Client, &said));
        assert!(!secret.is_proof(&proof, Role::Server, &said));
        assert!(secret.is_proof(&secret.proof(Role::Server, &said), Role::Server, &said));
        // As the specification has it.
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "a4ade4ac77c0b70efa34f2c95f7383cba831e0990f037d30d81f1e0829802df3");
        let other = Secret::new(b"0123456789abcdeF").unwrap();
        assert!(!other.is_proof(&proof, Role::Client, &said));
        for changed in [&[&b"hello"[..]][..], &[b"hellO", b"challenge"], &[b"hello", b"challenge", b"more"]] {
            assert!(!secret.is_proof(&proof, Role::Client, &greeting(changed)));
        }
        let mut bound = said.clone();
        bound.channel_binding = b"a channel";
        assert!(!secret.is_proof(&proof, Role::Client, &bound));
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        assert!(Secret::new(b"short").unwrap_err().contains("at least 16"));
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "(a secret)");
    }
}
