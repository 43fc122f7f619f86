//! The support bundle: an archive with the checks, and with the documents from which they were made.
//! It contains no secret: the configuration has only the paths of secrets, and neither status nor
//! metrics contain one.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::settings::Settings;
use super::{Check, Server, unix_ms};
use crate::output::Failure;

/// Writes the bundle; only its owner may read it.
///
/// # Errors
/// Fails if the file exists, or cannot be written. In that case no part of it is left.
pub(super) fn write(
    path: &Path,
    checks: &[Check],
    settings: Option<&Settings>,
    server: Option<&Server>,
) -> Result<(), Failure> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(Failure::io(path.display()))?;
    let done = pack(file, &documents(checks, settings, server));
    if done.is_err() {
        let _ = std::fs::remove_file(path);
    }
    done.map_err(Failure::io(path.display()))
}

/// Returns the names and the contents of the files in the bundle.
fn documents(
    checks: &[Check],
    settings: Option<&Settings>,
    server: Option<&Server>,
) -> Vec<(&'static str, String)> {
    let text: Vec<String> = checks.iter().map(Check::text).collect();
    let values: Vec<Value> = checks.iter().map(Check::value).collect();
    let system = rustix::system::uname();
    let part = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let versions = json!({
        "cachectl": env!("CARGO_PKG_VERSION"),
        "program": server.map(|server| &server.status["program"]),
        "version": server.map(|server| &server.status["version"]),
        "kernel": part(system.release()),
        "machine": part(system.machine()),
        "host": part(system.nodename()),
        "unix_ms": unix_ms(),
    });
    let mut all = vec![
        ("checks.txt", text.join("\n") + "\n"),
        ("checks.json", Value::Array(values).to_string()),
        ("versions.json", versions.to_string()),
    ];
    all.extend(settings.map(|settings| ("config.json", settings.without_secrets().to_string())));
    if let Some(server) = server {
        all.push(("status.json", server.status.to_string()));
        all.push(("metrics.txt", server.metrics.clone()));
    }
    all
}

fn pack(file: File, documents: &[(&str, String)]) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, content) in documents {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(unix_ms() / 1000);
        archive.append_data(&mut header, format!("cached-support/{name}"), content.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}
