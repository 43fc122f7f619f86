//! The shared secret: who does not know it is not let in, and it never crosses the wire.
//!
//! Both sides prove that they know it, by HMAC-SHA-256 over what was said before, each with a word of its
//! own so that a proof cannot be sent back (a challenge-response as in RFC 2104 and RFC 5802, without the
//! password's stretching: the secret is to be a random key). What this leaves out: everything after the
//! greeting is neither secret nor protected against change by an attacker on the path; that is TLS's work.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::codec::{Challenge, Hello};

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

    /// The proof that a client sends.
    pub(crate) fn client_proof(&self, hello: &Hello, challenge: &Challenge) -> [u8; 32] {
        self.mac(b"synapse 1 client", hello, challenge).finalize().into_bytes().into()
    }

    /// The proof that a server sends.
    pub(crate) fn server_proof(&self, hello: &Hello, challenge: &Challenge) -> [u8; 32] {
        self.mac(b"synapse 1 server", hello, challenge).finalize().into_bytes().into()
    }

    /// Whether a client's proof is right, in constant time.
    pub(crate) fn is_client_proof(&self, proof: &[u8; 32], hello: &Hello, challenge: &Challenge) -> bool {
        self.mac(b"synapse 1 client", hello, challenge).verify(&(*proof).into()).is_ok()
    }

    /// Whether a server's proof is right, in constant time.
    pub(crate) fn is_server_proof(&self, proof: &[u8; 32], hello: &Hello, challenge: &Challenge) -> bool {
        self.mac(b"synapse 1 server", hello, challenge).verify(&(*proof).into()).is_ok()
    }

    fn mac(&self, role: &[u8; 16], hello: &Hello, challenge: &Challenge) -> Hmac<Sha256> {
        // A key of any length is a key.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any key");
        mac.update(role);
        mac.update(&hello.nonce);
        mac.update(&challenge.nonce);
        mac.update(&hello.session.client);
        mac.update(&hello.session.lane.to_le_bytes());
        mac.update(&hello.features.0.to_le_bytes());
        mac.update(&challenge.instance);
        mac
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
    use crate::codec::{Credits, Features, SessionId};

    fn greeting() -> (Hello, Challenge) {
        let session = SessionId { client: [1; 16], lane: 2 };
        let credits = Credits { slots: 1, bytes: 1 };
        let hello = Hello { session, features: Features(1), nonce: [3; 32], credits };
        (hello, Challenge { nonce: [4; 32], instance: [5; 16] })
    }

    #[test]
    fn a_proof_holds_for_its_secret_its_role_and_its_greeting_only() {
        let secret = Secret::new(b"0123456789abcdef\n").unwrap();
        let (hello, challenge) = greeting();
        let proof = secret.client_proof(&hello, &challenge);
        assert!(secret.is_client_proof(&proof, &hello, &challenge));
        assert!(!secret.is_server_proof(&proof, &hello, &challenge));
        assert!(secret.is_server_proof(&secret.server_proof(&hello, &challenge), &hello, &challenge));
        let other = Secret::new(b"0123456789abcdeF").unwrap();
        assert!(!other.is_client_proof(&proof, &hello, &challenge));
        let mut replayed = challenge;
        replayed.nonce[0] ^= 1;
        assert!(!secret.is_client_proof(&proof, &hello, &replayed));
        let mut stolen = hello;
        stolen.session.lane += 1;
        assert!(!secret.is_client_proof(&proof, &stolen, &challenge));
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        assert!(Secret::new(b"short").unwrap_err().contains("at least 16"));
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "(a secret)");
    }
}
