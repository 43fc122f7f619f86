//! The handshake's proofs that a side knows the shared secret ([`Secret`]): so an attacker on the
//! path cannot change versions, features, credits, or the store's identity.

use connection::{Output, Secret, Transcript};

/// The side that sends a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Role::Client => b"synapse 1 client",
            Role::Server => b"synapse 1 server",
        }
    }

    /// Returns this side's proof, computed over the handshake so far.
    pub(crate) fn proof(self, secret: &Secret, handshake: &Transcript) -> [u8; 32] {
        secret.prove(self.label(), handshake)
    }

    /// Returns whether a proof of this side is valid.
    pub(crate) fn has_proven(self, secret: &Secret, proof: &[u8; 32], handshake: &Transcript) -> bool {
        secret.is_proof(proof, self.label(), handshake)
    }
}

/// Appends the frame that `encode` writes to the handshake, and queues it in `output`.
pub(crate) fn send(handshake: &mut Transcript, output: &mut Output, encode: impl FnOnce(&mut Vec<u8>)) {
    output.push_head(|out| {
        let start = out.len();
        encode(out);
        handshake.push(&out[start..]);
    });
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

    #[test]
    fn proofs_are_those_of_the_protocol_document() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let mut handshake = Transcript::default();
        [&b"hello"[..], b"challenge"].iter().for_each(|frame| handshake.push(frame));
        let proof = Role::Client.proof(&secret, &handshake);
        // docs/synapse-protocol.md contains this value.
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "a4ade4ac77c0b70efa34f2c95f7383cba831e0990f037d30d81f1e0829802df3");
        assert!(Role::Client.has_proven(&secret, &proof, &handshake));
        assert!(!Role::Server.has_proven(&secret, &proof, &handshake));
    }
}
