//! Inputs from the committed corpus, and exchanges recorded from memcached 1.6.45.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::path::Path;

/// Returns the seeds of a fuzz target with their names, in order. Their first byte determines how
/// the rest is cut.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut seeds: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a readable seed"))
        })
        .collect();
    seeds.sort();
    seeds
}

/// A recorded exchange.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) send: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    pub(crate) closed: bool,
}

/// Returns the recorded exchanges.
pub(crate) fn vectors() -> Vec<Vector> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/memcached-1.6.45.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let vectors: Vec<_> = text
        .split("\"name\"")
        .skip(1)
        .map(|object| {
            let hex = string(object, "recv_hex").map(|hex| {
                (0..hex.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                    .collect()
            });
            let plain = || unescape(&string(object, "recv").expect("a reply"));
            Vector {
                name: object.split('"').nth(1).expect("a name").to_string(),
                send: base64(&string(object, "send_b64").expect("an input")),
                reply: hex.unwrap_or_else(plain),
                closed: object.contains("\"closed\": true"),
            }
        })
        .collect();
    assert!(vectors.len() > 100, "the file reads otherwise than expected");
    vectors
}

/// Returns a string member of a JSON object, without unescaping; no string contains a quotation
/// mark.
fn string(object: &str, name: &str) -> Option<String> {
    let at = object.find(&format!("\"{name}\""))?;
    Some(object[at + name.len() + 2..].split('"').nth(1)?.to_string())
}

fn unescape(text: &str) -> Vec<u8> {
    text.replace("\\r", "\r").replace("\\n", "\n").into_bytes()
}

fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut block, mut bits) = (0u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let value = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let value = value.iter().position(|digit| *digit == byte).expect("base64");
        block = block << 6 | value as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((block >> bits) as u8);
        }
    }
    bytes
}
