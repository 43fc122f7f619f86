//! `cachectl sweep`, on an S3 server in this process whose clock the test advances.

use std::process::{Command, Output};

fn cachectl(backend: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
    command.args(["--backend", backend]).args(arguments).output().unwrap()
}

/// Asserts that the command fails with this status and one line that contains the text.
#[track_caller]
fn fails(backend: &str, arguments: &[&str], code: i32, text: &str) {
    let output = cachectl(backend, arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.contains(text) && error.lines().count() == 1, "{error:?} is no line with {text:?}");
}

#[test]
fn what_cannot_be_swept_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    blocker::FileStore::create(dir.path()).unwrap();
    let store = format!("file:{}", dir.path().display());
    fails(&store, &["sweep"], 2, "only a store on S3 can be swept");
    fails(&store, &["sweep", "--age", "899"], 2, "--age must be at least 900");
    fails(&store, &["sweep", "--age", "0", "--alone"], 2, "only a store on S3 can be swept");
}

#[cfg(feature = "s3")]
mod of_s3 {
    use super::*;
    use crate::http::Double;
    use serde_json::{Value, json};

    struct Place {
        server: Double,
        backend: String,
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let (server, dir) = (Double::new(), tempfile::tempdir().unwrap());
            let credentials = dir.path().join("credentials");
            std::fs::write(&credentials, "[default]\naws_access_key_id = any\naws_secret_access_key = any\n")
                .unwrap();
            let (address, credentials) = (server.address, credentials.display());
            let backend = format!(
                "s3:bucket,endpoint=http://{address},allow_http=true,credentials_file={credentials},sweep_interval_secs=0"
            );
            Self { server, backend, dir }
        }

        #[track_caller]
        fn ok(&self, arguments: &[&str]) -> String {
            let output = cachectl(&self.backend, arguments);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
            String::from_utf8(output.stdout).unwrap()
        }

        #[track_caller]
        fn sweep(&self, arguments: &[&str], counts: [u64; 6]) {
            let found: Value =
                serde_json::from_str(&self.ok(&[&["--json", "sweep"][..], arguments].concat())).unwrap();
            let [blobs, orphans, orphans_bytes, heads, ghosts, probes] = counts;
            let wanted = json!({
                "dry_run": arguments.contains(&"--dry-run"),
                "blobs": blobs, "orphans": orphans, "orphans_bytes": orphans_bytes,
                "heads": heads, "ghosts": ghosts, "ghosts_kept": 0, "ghosts_can_go": true, "probes": probes,
            });
            assert_eq!(found, wanted, "{arguments:?}");
        }
    }

    #[test]
    fn left_overs_are_counted_and_removed_by_age() {
        let place = Place::new();
        let file = place.dir.path().join("file");
        std::fs::write(&file, vec![7; 100_000]).unwrap();
        let file = file.to_str().unwrap();
        place.ok(&["put", "disk", file]);
        place.ok(&["put", "gone", file]);
        place.ok(&["rm", "gone"]);
        let named = place.server.keys("d/");
        assert_eq!((named.len(), place.server.keys("h/").len()), (1, 2));
        let orphan = |name: &str| format!("d/n.default/n/{name}/{:032x}", 0xabcd);
        for name in ["disk", "never.was"] {
            place.server.put(&orphan(name), &[1; 1000]);
        }
        place.server.put("p/left", b"by a program that has ended");
        // The numbers are those of blobs, orphans and their bytes, heads, ghosts, and probes.
        place.sweep(&["--dry-run"], [3, 0, 0, 2, 0, 0]);
        place.server.advance(3500);
        place.sweep(&[], [3, 0, 0, 2, 0, 0]);
        place.sweep(&["--dry-run", "--age", "3400"], [3, 2, 2000, 2, 1, 1]);
        assert_eq!((place.server.keys("d/").len(), place.server.keys("h/").len()), (3, 2), "a dry run");
        place.server.advance(100);
        let text = place.ok(&["sweep", "--dry-run"]);
        assert!(
            text.contains("2 of 3 blobs, 2000 bytes, which belong to no object, would be removed"),
            "{text}"
        );
        assert!(text.contains("1 of 2 heads, of deleted objects, would be removed"), "{text}");
        place.sweep(&[], [3, 2, 2000, 2, 1, 1]);
        assert_eq!(place.server.keys("d/"), named);
        assert_eq!((place.server.keys("h/").len(), place.server.keys("p/").len()), (1, 0));
        place.sweep(&[], [1, 0, 0, 1, 0, 0]);
        assert_eq!(place.ok(&["get", "disk"]).as_bytes(), vec![7; 100_000]);
    }

    #[test]
    fn a_young_left_over_goes_only_where_nothing_else_writes() {
        let place = Place::new();
        place.server.put(&format!("d/n.default/n/disk/{:032x}", 1), &[1; 10]);
        fails(&place.backend, &["sweep", "--age", "0"], 2, "--age must be at least 900");
        place.sweep(&["--age", "0", "--alone"], [1, 1, 10, 0, 0, 0]);
        place.server.ignore_conditions_of_removals();
        let text = place.ok(&["sweep"]);
        assert!(text.contains("heads of deleted objects are kept: the server ignores conditions"), "{text}");
    }

    #[test]
    fn a_server_that_refuses_is_named_and_what_was_removed_stays_so() {
        let place = Place::new();
        for number in 0..3 {
            place.server.put(&format!("d/n.default/n/disk/{number:032x}"), &[1; 10]);
        }
        let mut removals = 0;
        place.server.trouble(move |asked| {
            removals += u32::from(asked.method == "DELETE" && asked.key.starts_with("d/"));
            match removals {
                2.. => crate::http::Trouble::Refused("403 Forbidden", "AccessDenied"),
                _ => crate::http::Trouble::None,
            }
        });
        fails(&place.backend, &["sweep", "--age", "0", "--alone"], 4, "what it has removed stays removed");
        assert_eq!(place.server.keys("d/").len(), 2);
    }
}
