//! Ceph's s3-tests: one pass over the suite, in concurrent slices, and the outcome of each test.

use crate::outside::{run, text};
use crate::s3::compare::expected;
use crate::s3::endpoint::{Endpoint, Kind, User};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suite's files that test S3; the others test radosgw's other services.
const FILES: [&str; 2] = ["s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py"];
/// The time limit of a pass.
const DEADLINE: Duration = Duration::from_secs(2 * 3600);
/// The time limit of one test, in seconds. Some tests wait for lifecycles.
const TEST_SECS: &str = "240";
/// The users of each slice.
pub const ROLES: [&str; 4] = ["main", "alt", "tenant", "iam"];

/// The suite, and its Python environment.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The directory of s3-tests.
    pub suite: PathBuf,
    /// The directory of the Python environment's programs.
    pub programs: PathBuf,
    /// The number of concurrent slices.
    pub slices: usize,
    /// Selects the tests whose names contain this text; an empty text selects all tests.
    pub only: String,
}

/// A pass over the suite.
#[derive(Clone, Debug)]
pub struct Pass<'a> {
    /// The tested endpoint: one URL for all slices, or one for each slice.
    pub urls: &'a [&'a str],
    /// The prefix of the pass's bucket names: a few lower-case letters and a hyphen.
    pub buckets: &'a str,
    /// The number of reads of each object.
    pub reads: u32,
    /// The names of the selected tests; all tests if empty.
    pub names: &'a [String],
}

/// The outcome of one test.
#[derive(Clone, Debug, Deserialize)]
pub struct Outcome {
    /// The file and the test.
    pub test: String,
    /// The outcome: `passed`, `failed` (in the test), `error` (before or after the test) or
    /// `skipped`.
    pub outcome: String,
    /// The reason of a failure.
    pub why: String,
    /// The duration.
    pub seconds: f64,
}

impl Outcome {
    /// Returns whether the test passed.
    pub fn has_passed(&self) -> bool {
        self.outcome == "passed"
    }
}

/// The outcome of each test, by name.
pub type Outcomes = BTreeMap<String, Outcome>;

impl Judge {
    /// Creates the users of the slices.
    ///
    /// # Panics
    /// Panics if the endpoint refuses a user.
    pub fn prepare(&self, endpoint: &Endpoint) {
        for number in 0..self.slices {
            for role in ROLES {
                endpoint.add(&User::new(endpoint.kind(), role, number));
            }
        }
    }

    /// Runs the suite once.
    ///
    /// # Panics
    /// Panics if pytest does not complete.
    pub fn run(&self, kind: Kind, pass: &Pass<'_>) -> Outcomes {
        let dir = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("a list of names");
        write("names", pass.names.join("\n"));
        write("skipped", expected().skipped(kind).into_iter().collect::<Vec<_>>().join("\n"));
        std::thread::scope(|scope| {
            for number in 0..self.slices {
                let dir = dir.path();
                scope.spawn(move || self.run_slice(kind, pass, number, dir));
            }
        });
        let reports = (0..self.slices).map(|number| dir.path().join(format!("{number}.jsonl")));
        reports.flat_map(|path| read(&path)).map(|outcome| (outcome.test.clone(), outcome)).collect()
    }

    fn run_slice(&self, kind: Kind, pass: &Pass<'_>, number: usize, dir: &Path) {
        let configuration = dir.join(format!("{number}.conf"));
        std::fs::write(&configuration, configured(kind, pass.urls[number % pass.urls.len()], number))
            .expect("a configuration");
        let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("s3/suite");
        let path = std::env::join_paths([&plugin, &self.suite]).expect("paths without colons");
        let mut command = Command::new(self.programs.join("python"));
        command.args([
            "-m",
            "pytest",
            "-p",
            "judge",
            "-p",
            "no:cacheprovider",
            "--quiet",
            "--tb=no",
            "-W",
            "ignore",
        ]);
        command.args(FILES).current_dir(&self.suite);
        command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "127.0.0.1");
        command.env("S3TEST_CONF", &configuration).env("S3_SUITE_SLICE", format!("{number}/{}", self.slices));
        command.env("S3_SUITE_REPORT", dir.join(format!("{number}.jsonl")));
        command.env("S3_SUITE_BUCKETS", pass.buckets).env("S3_SUITE_READS", pass.reads.to_string());
        command.env("S3_SUITE_SECONDS", TEST_SECS).env("S3_SUITE_ONLY", &self.only);
        command.env("S3_SUITE_SKIPPED", dir.join("skipped"));
        if !pass.names.is_empty() {
            command.env("S3_SUITE_NAMES", dir.join("names"));
        }
        let output = run(&mut command, DEADLINE);
        // The exit status is 0 if all tests passed, 1 if some failed, and 5 if the slice has no
        // tests.
        let ran = matches!(output.status.code(), Some(0 | 1 | 5));
        assert!(ran, "pytest {:?}: {}", output.status, text(&output));
    }
}

fn read(path: &Path) -> Vec<Outcome> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// Returns the configuration that s3-tests read.
fn configured(kind: Kind, url: &str, number: usize) -> String {
    let address = url.strip_prefix("http://").expect("an address without TLS");
    let (host, port) = address.rsplit_once(':').expect("a port");
    let mut text = format!(
        "[DEFAULT]\nhost = {host}\nport = {port}\nis_secure = False\nssl_verify = False\n\
         [fixtures]\nbucket prefix = unused-{{random}}-\n"
    );
    let sections = [
        ("s3 main", "main"),
        ("s3 alt", "alt"),
        ("s3 tenant", "tenant"),
        ("iam", "iam"),
        ("iam root", "iam"),
        ("iam alt root", "iam"),
    ];
    for (section, role) in sections {
        let User { access_key, secret_key, id, name, tenant } = User::new(kind, role, number);
        let _ = write!(
            text,
            "[{section}]\ndisplay_name = {name}\nuser_id = {id}\nemail = {name}@example.com\naccess_key = {access_key}\n\
             secret_key = {secret_key}\ntenant = {tenant}\napi_name = default\nlc_debug_interval = 10\n\
             kms_keyid = testkey-1\nkms_keyid2 = testkey-2\n"
        );
    }
    text
}
