//! The key of one day and region, which is derived from a secret, and signatures with it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

type HmacSha256 = Hmac<Sha256>;

/// A key that signs requests of one day and region. Its `Debug` output does not show it.
#[derive(Clone)]
pub(crate) struct SigningKey(HmacSha256);

impl SigningKey {
    /// Derives the key of a scope: `DAY/REGION/s3/aws4_request`.
    pub(crate) fn derive(secret: &str, scope: &str) -> SigningKey {
        let mut first = Vec::with_capacity(4 + secret.len());
        first.extend_from_slice(b"AWS4");
        first.extend_from_slice(secret.as_bytes());
        let last = scope.split('/').fold(first, |key, part| keyed(&key, part.as_bytes()).to_vec());
        SigningKey(mac(&last))
    }

    /// Returns the signature of a text.
    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(text).finalize().into_bytes().into()
    }

    /// Returns whether a signature is that of a text. The time does not depend on where they differ.
    pub(crate) fn is_signature(&self, text: &[u8], signature: &[u8; 32]) -> bool {
        self.0.clone().chain_update(text).verify_slice(signature).is_ok()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a signing key)")
    }
}

fn mac(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn keyed(key: &[u8], text: &[u8]) -> [u8; 32] {
    mac(key).chain_update(text).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::canonical::push_hex;

    /// From "Deriving the signing key" in the documentation of AWS.
    #[test]
    fn the_documented_key_is_derived() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let derive = |scope: &str| {
            let mut first = b"AWS4".to_vec();
            first.extend_from_slice(secret.as_bytes());
            scope.split('/').fold(first, |key, part| keyed(&key, part.as_bytes()).to_vec())
        };
        let mut hex = Vec::new();
        push_hex(&mut hex, &derive("20150830/us-east-1/iam/aws4_request"));
        let documented = "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9";
        assert_eq!(String::from_utf8(hex).unwrap(), documented);
        assert_eq!(format!("{:?}", SigningKey::derive(secret, "a/b")), "(a signing key)");
    }

    #[test]
    fn a_signature_holds_for_its_text_and_key() {
        let key = SigningKey::derive("secret", "20150830/r/s3/aws4_request");
        let signature = key.sign(b"text");
        assert!(key.is_signature(b"text", &signature));
        assert!(!key.is_signature(b"texs", &signature));
        assert!(
            !SigningKey::derive("secret", "20150831/r/s3/aws4_request").is_signature(b"text", &signature)
        );
        for at in 0..32 {
            let mut other = signature;
            other[at] ^= 1;
            assert!(!key.is_signature(b"text", &other));
        }
    }
}
