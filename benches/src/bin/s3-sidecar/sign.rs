//! Requests that are signed once and sent many times: the signature (AWS version 4) is in a header
//! and does not cover `Range`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use cached_benches::machine::civil_date;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The `Host` of every request, whichever server receives it, so that the signed data are always
/// the same.
pub(crate) const HOST: &str = "localhost";
const REGION: &str = "us-east-1";

/// A user's keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) access: String,
    pub(crate) secret: String,
}

impl Keys {
    /// Returns the head of a request without its last, empty line. It is valid for fifteen minutes.
    /// `path` must not need escaping.
    pub(crate) fn signed(&self, method: &str, path: &str) -> String {
        let secs = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.signed_at(method, path, secs)
    }

    fn signed_at(&self, method: &str, path: &str, secs: u64) -> String {
        let (year, month, day) = civil_date(secs / 86_400);
        let date = format!("{year}{month:02}{day:02}");
        let time = format!("{date}T{:02}{:02}{:02}Z", secs / 3600 % 24, secs / 60 % 60, secs % 60);
        let names = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!(
            "{method}\n{path}\n\nhost:{HOST}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{time}\n\n{names}\nUNSIGNED-PAYLOAD"
        );
        let scope = format!("{date}/{REGION}/s3/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in [date.as_str(), REGION, "s3", "aws4_request"] {
            key = keyed(&key, part);
        }
        let signature = hex(&keyed(&key, &text));
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nx-amz-date: {time}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n",
            self.access
        )
    }
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("any length of key is right");
    hmac.update(text.as_bytes());
    hmac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_as_botocore_makes_it() {
        let keys = Keys { access: "KEY".into(), secret: "SECRET".into() };
        let head = keys.signed_at("GET", "/bench/a", 1_790_000_000);
        assert!(head.contains("x-amz-date: 20260921T141320Z\r\n"), "{head}");
        assert!(
            head.ends_with("Signature=afa1b072af7129b49137a135d40720d9e724b42692823c1094d114e417f7ca02\r\n"),
            "{head}"
        );
    }
}
