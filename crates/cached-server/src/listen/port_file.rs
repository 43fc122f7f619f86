//! `MEMCACHED_PORT_FILENAME`: a file that is told which ports were taken, for test programs that ask for any free one.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Writes one line per address, under another name first, so that nobody reads half of it.
pub(crate) fn write(addresses: &[SocketAddr]) -> io::Result<()> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else { return Ok(()) };
    let mut text = String::new();
    for address in addresses {
        let family = if address.is_ipv6() { "INET6" } else { "INET" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "TCP {family}: {}", address.port());
    }
    let mut draft = path.clone();
    draft.push(".lck");
    let draft = PathBuf::from(draft);
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}
