//! Signs as described in the documentation of signature version 4, step by step, independently of
//! the tested code.

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub const ACCESS_KEY: &str = "client-key";
pub const SECRET_KEY: &str = "client-secret-0123456789";

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.chain_update(text.as_bytes()).finalize().into_bytes().to_vec()
}

/// Returns the current time as `YYYYMMDDTHHMMSSZ`, computed by counting days.
pub fn stamp() -> String {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (mut days, rest) = (secs / 86_400, secs % 86_400);
    let (mut year, mut month) = (1970, 0);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{:02}{:02}T{hour:02}{minute:02}{second:02}Z", month + 1, days + 1)
}

/// A request to be signed. Its path and query are in the form that is signed, and its headers in
/// lower case.
pub struct Unsigned<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub headers: Vec<(String, String)>,
    pub payload: String,
}

pub struct Signed {
    pub authorization: String,
    pub signature: String,
    pub key: Vec<u8>,
    pub scope: String,
}

pub fn sign(request: &Unsigned<'_>, access_key: &str, secret: &str, region: &str, stamp: &str) -> Signed {
    let mut headers = request.headers.clone();
    headers.sort();
    let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let Unsigned { method, path, query, payload, .. } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
    let scope = format!("{}/{region}/s3/aws4_request", &stamp[..8]);
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let mut key = format!("AWS4{secret}").into_bytes();
    for part in scope.split('/') {
        key = hmac(&key, part);
    }
    let signature = hex(&hmac(&key, &text));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    );
    Signed { authorization, signature, key, scope }
}

/// A client that signs its requests.
pub struct Signer {
    pub host: String,
    pub access_key: String,
    pub secret: String,
}

impl Default for Signer {
    fn default() -> Self {
        Self { host: "localhost".into(), access_key: ACCESS_KEY.into(), secret: SECRET_KEY.into() }
    }
}

impl Signer {
    /// Returns the head of a signed request, and the state with which its signature was made.
    pub fn head(&self, line: &str, payload: &str, headers: &[(&str, &str)]) -> (String, Signed, String) {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let stamp = stamp();
        let mut all = vec![
            ("host".to_owned(), self.host.clone()),
            ("x-amz-date".to_owned(), stamp.clone()),
            ("x-amz-content-sha256".to_owned(), payload.to_owned()),
        ];
        all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let request = Unsigned { method, path, query, headers: all.clone(), payload: payload.to_owned() };
        let signed = sign(&request, &self.access_key, &self.secret, "us-east-1", &stamp);
        all.push(("authorization".into(), signed.authorization.clone()));
        let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        (format!("{line} HTTP/1.1\r\n{lines}\r\n"), signed, stamp)
    }

    /// Returns a signed request without a body.
    pub fn request(&self, line: &str, headers: &[(&str, &str)]) -> String {
        self.head(line, &sha256(b""), headers).0
    }

    /// Returns a signed request with a body.
    pub fn upload(&self, line: &str, body: &[u8], headers: &[(&str, &str)]) -> Vec<u8> {
        let len = body.len().to_string();
        let headers = [headers, &[("content-length", &len)]].concat();
        let mut bytes = self.head(line, &sha256(body), &headers).0.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Returns a signed request with a chunked body, and optionally with a trailer, and the
    /// position where the body starts.
    pub fn chunked(&self, line: &str, chunks: &[&[u8]], trailer: Option<(&str, &str)>) -> (Vec<u8>, usize) {
        let decoded = chunks.iter().map(|chunk| chunk.len()).sum::<usize>().to_string();
        let mut headers =
            vec![("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", &*decoded)];
        let mut payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned();
        if let Some((name, _)) = trailer {
            headers.push(("x-amz-trailer", name));
            payload += "-TRAILER";
        }
        let (head, signed, stamp) = self.head(line, &payload, &headers);
        let mut previous = signed.signature.clone();
        let mut body = Vec::new();
        for chunk in chunks.iter().copied().chain([&b""[..]]) {
            let text = format!(
                "AWS4-HMAC-SHA256-PAYLOAD\n{stamp}\n{}\n{previous}\n{}\n{}",
                signed.scope,
                sha256(b""),
                sha256(chunk)
            );
            previous = hex(&hmac(&signed.key, &text));
            body.extend(format!("{:x};chunk-signature={previous}\r\n", chunk.len()).bytes());
            body.extend_from_slice(chunk);
            if !chunk.is_empty() {
                body.extend(b"\r\n");
            }
        }
        if let Some((name, value)) = trailer {
            let canonical = sha256(format!("{name}:{value}\n").as_bytes());
            let text =
                format!("AWS4-HMAC-SHA256-TRAILER\n{stamp}\n{}\n{previous}\n{canonical}", signed.scope);
            let signature = hex(&hmac(&signed.key, &text));
            body.extend(format!("{name}:{value}\r\nx-amz-trailer-signature:{signature}\r\n").bytes());
        }
        body.extend(b"\r\n");
        // The length of the body is not signed.
        let head = head.replacen("\r\n", &format!("\r\ncontent-length: {}\r\n", body.len()), 1);
        let begin = head.len();
        (([head.into_bytes(), body].concat()), begin)
    }
}
