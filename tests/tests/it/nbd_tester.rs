//! The NBD project's own test client tests the NBD server of `cached`: throughput with a check of
//! every reply, replay of a file system's trace with a comparison of every block, oversized
//! requests, negotiation.
//!
//! The client is in a Debian source package, which the first run downloads and builds in the target
//! directory.

use cached_tests::daemon::{DEADLINE, Daemon};
use cached_tests::outside;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TEST: &str = "nbd_s_own_client";
const FETCH_DEADLINE: Duration = Duration::from_secs(600);
const ATTEMPTS: u32 = 4;
/// The exit status of `fetch` if Debian has a different version.
const OTHER_VERSION: i32 = 3;

/// Returns the directory of the client and its traces. If they are missing, prints the reason and
/// returns `None`.
fn tester() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nbd-tester");
    if path.join("nbd-tester-client").exists() {
        return Some(path);
    }
    if !outside::are_installed(TEST, &["apt-get", "cc", "xz"]) {
        return None;
    }
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("suite/nbd/fetch");
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let output = outside::run(Command::new(&fetch).arg(&path), FETCH_DEADLINE);
        said = outside::text(&output);
        match output.status.code() {
            Some(0) => return Some(path),
            // This is not under the repository's control, so the test does not fail.
            Some(OTHER_VERSION) => {
                outside::announce_skip(TEST, &said);
                return None;
            }
            _ => println!("again: {said}"),
        }
    }
    outside::skip(TEST, &format!("the source of nbd cannot be fetched:\n{said}"));
    None
}

/// Returns the last lines of the client's output, in which each progress line overwrites the
/// previous one.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.split(['\r', '\n']).filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

#[test]
#[ignore = "long: nbd-suite, which is fetched and built"]
fn nbd_s_own_client() {
    let Some(tester) = tester() else { return };
    let daemon = Daemon::start("cached", |place| {
        format!(
            "[objects]\nwrite = \"back\"\nmemory_bytes_max = \"128 MiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\n\
             path = \"{place}/store\"\n[volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 2\n"
        )
    });
    let socket = daemon.path("nbd").display().to_string();
    let trace = |name: &str| tester.join(name).display().to_string();
    // integrityhuge-test.tr is not used: it contains requests of up to 50 MB, above the server's
    // announced limit of 32 MiB.
    let small = trace("integrity-test.tr");
    // The trace expects zeros in unwritten blocks.
    for (volume, arguments) in [
        ("throughput", vec![]),
        ("throughput", vec!["-w"]),
        ("throughput", vec!["-w", "-f"]),
        ("throughput", vec!["-o"]),
        ("throughput", vec!["-h"]),
        ("integrity", vec!["-i", "-t", small.as_str()]),
    ] {
        let (code, text) = daemon.cachectl(&["volume", "create", volume, "50M"]);
        assert!(code == 0 || text.contains("exists already"), "{text}");
        let mut client = Command::new(tester.join("nbd-tester-client"));
        client.args(["-u", &socket, "-N", volume]).args(&arguments);
        let output = outside::run(&mut client, DEADLINE);
        let said = last_lines(&outside::text(&output));
        assert!(output.status.success(), "{volume} {arguments:?}: {said}\n{}", daemon.log());
        println!("{volume} {arguments:?}: {said}");
    }
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}
