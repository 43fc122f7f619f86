//! Servers that require passwords, and the clients' login requests.

use crate::frame::{Request, op};
use crate::program::Flavour;
use crate::server::Start;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const USER: &str = "someone";
const PASSWORD: &str = "a-secret";
/// The opaque of the binary request.
const OPAQUE: u32 = 0x0a07_0a07;

/// Returns the password file, which all servers of this process share.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn file() -> &'static Path {
    static FILE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("passwords");
        std::fs::write(&path, format!("other:one\n{USER}:{PASSWORD}\n")).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        (dir, path)
    });
    path
}

/// Adds the arguments that make a server require the password, in both protocols or, for memcached,
/// in the protocol that the test uses.
pub fn require(start: Start, flavour: Flavour, binary: bool) -> Start {
    let text = flavour == Flavour::Cached || !binary;
    let start = if text { start.args(&format!("-Y {}", file().display())) } else { start };
    let sasl = flavour == Flavour::Cached || binary;
    if sasl { start.args("-S").variable("MEMCACHED_SASL_PWDB", file()) } else { start }
}

/// Returns the request with the password, and the reply to it.
pub fn login(binary: bool) -> (Vec<u8>, Vec<u8>) {
    if !binary {
        let data = format!("{USER} {PASSWORD}");
        return (format!("set any 0 0 {}\r\n{data}\r\n", data.len()).into_bytes(), b"STORED\r\n".to_vec());
    }
    let code = op("SASL_AUTH").expect("the operation SASL_AUTH");
    let data = format!("\0{USER}\0{PASSWORD}");
    let request = Request { opaque: Some(OPAQUE), ..Request::new(code).key(b"PLAIN").value(data.as_bytes()) };
    let mut reply = vec![0x81, code, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13];
    reply.extend(OPAQUE.to_be_bytes());
    reply.extend([0; 8]);
    reply.extend(b"Authenticated");
    (request.bytes(), reply)
}
