//! `MEMCACHED_PORT_FILENAME`: a file with the ports that were opened, for test programs that request any free one.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Writes one line per address, under another name first, so that no reader finds half of it. Does nothing if the variable is not
/// set.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write(tcp: &[SocketAddr], udp: &[SocketAddr]) -> io::Result<()> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else { return Ok(()) };
    let mut text = String::new();
    let all = tcp.iter().map(|address| ("TCP", address)).chain(udp.iter().map(|address| ("UDP", address)));
    for (kind, address) in all {
        let family = if address.is_ipv6() { "INET6" } else { "INET" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{kind} {family}: {}", address.port());
    }
    let mut draft = path.clone();
    draft.push(".lck");
    let draft = PathBuf::from(draft);
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}
