//! `cachectl doctor` with a healthy server, with one that is not, and before the first start; and
//! its support bundle.

use cached_tests::daemon::{DEADLINE, Daemon, write_secret};
use cached_tests::outside;
use cached_tests::program::workspace_programs;
use cached_tests::tls::{Certificates, Validity};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A secret that nothing may show.
const SECRET: &str = "planted-secret-0123456789";

/// Starts a server whose store is on a disk, and whose admin listener has this certificate.
fn start(store: &Path, certificates: &Certificates, name: &str) -> Daemon {
    let file = |ending: &str| certificates.path(&format!("{name}.{ending}")).display().to_string();
    let (chain, key, store) = (file("pem"), file("key"), store.display());
    Daemon::start("cached", |place| {
        let secret = format!("{place}/secret");
        write_secret(Path::new(&secret), SECRET);
        format!(
            "[objects]\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{store}\"\n[synapse]\n\
             listen = [\"unix:{place}/synapse\"]\nsecret_file = \"{secret}\"\n\
             [admin.tls]\nchain_file = \"{chain}\"\nkey_file = \"{key}\"\n"
        )
    })
}

/// Returns the exit status of the command, and the results and lines of a check.
fn checks_of((code, text): (i32, String)) -> (i32, impl Fn(&str) -> Vec<(String, String)>) {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>();
    assert!(!lines.is_empty(), "{text}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = move |check: &str| {
        let found = lines.iter().filter(|line| line["check"] == check);
        found.map(|line| (text(&line["result"]), text(&line["line"]))).collect()
    };
    (code, of)
}

#[test]
fn a_healthy_server_is_in_order_and_its_bundle_has_no_secret() {
    let certificates = Certificates::new();
    // A directory for temporary files may be in memory.
    let store = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let daemon = start(&store.path().join("store"), &certificates, "server");
    let bundle = daemon.path("bundle.tar.gz").display().to_string();
    let (code, checks) = checks_of(daemon.cachectl(&["--json", "doctor", "--bundle", &bundle]));
    for name in ["server", "versions", "clocks", "memory", "descriptors", "certificate", "swap"] {
        let found = checks(name);
        assert!(found.len() == 1 && found[0].0 != "problem", "{name}: {found:?}");
    }
    // The required number is the sum over the limits of all listeners, one of which has 1024
    // connections.
    let line = &checks("descriptors")[0].1;
    let needed = line.rsplit_once(", and ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(needed.is_some_and(|needed| needed > 2048), "{line}");
    let found = checks("store");
    assert!(found.iter().all(|(_, line)| line.contains(&store.path().display().to_string())), "{found:?}");
    assert!(code == 0 || found[0].0 == "problem", "only the disk of the test may be full: {found:?}");

    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(&bundle).expect("the bundle")));
    let mut names = Vec::new();
    let mut all = String::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("a file");
        names.push(entry.path().expect("its name").display().to_string());
        entry.read_to_string(&mut all).expect("its text");
    }
    let right = ["checks.txt", "checks.json", "versions.json", "config.json", "status.json", "metrics.txt"];
    assert_eq!(names, right.map(|name| format!("cached-support/{name}")));
    let token = std::fs::read_to_string(daemon.path("token")).expect("a token");
    for present in ["synapse.secret_file", &daemon.path("token").display().to_string(), "cached_ready 1"] {
        assert!(all.contains(present), "{present} is missing");
    }
    let key = std::fs::read_to_string(certificates.path("server.key")).expect("a key");
    for secret in [SECRET, token.trim(), key.lines().nth(1).expect("a line of the key")] {
        assert!(!all.contains(secret), "{secret} is in the bundle");
    }
    let mode = std::fs::metadata(&bundle).expect("the bundle").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let (code, text) = daemon.cachectl(&["doctor", "--bundle", &bundle]);
    assert_eq!((code, text.contains("File exists")), (1, true), "{text}");
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}

#[test]
fn each_problem_is_named_with_what_to_do() {
    let certificates = Certificates::new();
    certificates.issue("old", Validity::Expired);
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let store = place.path().join("store");
    let daemon = start(&store, &certificates, "old");
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o555)).expect("other permissions");
    std::fs::set_permissions(daemon.path("token"), PermissionsExt::from_mode(0o644))
        .expect("other permissions");
    let limit = libc::rlimit { rlim_cur: 1000, rlim_max: 1000 };
    // SAFETY: the pointer leads to a local `rlimit`; nothing is written.
    let set = unsafe { libc::prlimit(daemon.pid(), libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "the limit is lowered");
    let (code, checks) = checks_of(daemon.cachectl(&["--json", "doctor"]));
    assert_eq!(code, 1);
    for (name, level, words) in [
        ("certificate", "problem", "admin.tls.chain_file: a certificate of the chain expired"),
        ("store", "problem", "(mode 555): chown or chmod it"),
        ("descriptors", "warning", "of 1000 descriptors are open"),
        ("secrets", "warning", "chmod 600"),
    ] {
        let found = checks(name);
        assert!(found.iter().any(|(is, line)| is == level && line.contains(words)), "{name}: {found:?}");
    }
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o700)).expect("the permissions");

    // Before the first start, the command checks the files that the configuration names. No server
    // needs to run.
    let config = place.path().join("next.toml");
    std::fs::write(&config, "[objects.journal]\ndirectory = \"/no/such/directory\"\n").expect("a file");
    let mut command = std::process::Command::new(workspace_programs().join("cachectl"));
    command.args(["--json", "--admin", "127.0.0.1:1", "doctor", "--config"]).arg(&config);
    let output = outside::run(&mut command, DEADLINE);
    let code = output.status.code().expect("an exit status");
    let (code, checks) = checks_of((code, outside::text(&output)));
    assert_eq!((code, checks("server")[0].0.as_str()), (1, "warning"));
    let found = checks("journal");
    assert!(found[0].1.contains("/no/such/directory: No such file"), "{found:?}");
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}
