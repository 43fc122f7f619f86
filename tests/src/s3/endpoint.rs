//! S3 endpoints that check signatures, on loopback, with users: versitygw over a directory, and Ceph's radosgw over a
//! cluster in memory.

use crate::ceph::Cluster;
use crate::daemon::DEADLINE;
use crate::outside::{are_installed, find_program, kill_with_thread, run, skip, text};
use crate::server::{bring_up, is_up};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program that is an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// versitygw, which keeps objects as files.
    Versitygw,
    /// radosgw, with one OSD in memory.
    Radosgw,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 2] = [Kind::Versitygw, Kind::Radosgw];

    /// Returns the name of the endpoint's program.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Versitygw => "versitygw",
            Kind::Radosgw => "radosgw",
        }
    }
}

/// A user of an endpoint. Names and keys are derived from the role and a number, so that users with
/// different numbers can run the same test concurrently.
#[derive(Clone, Debug)]
pub struct User {
    /// The access key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
    /// The user's name in the endpoint's responses.
    pub id: String,
    /// The user's name without the tenant, in lower case.
    pub name: String,
    /// The user's tenant, if any.
    pub tenant: &'static str,
}

impl User {
    /// Returns the user of a role (letters and digits) and a number.
    pub fn new(kind: Kind, role: &str, number: usize) -> Self {
        let name = format!("{role}{number}");
        // versitygw has no tenants, and no user names apart from access keys.
        let tenant = if kind == Kind::Radosgw && role == "tenant" { "testx" } else { "" };
        let access_key = name.to_uppercase();
        let id = match (kind, tenant) {
            (Kind::Versitygw, _) => access_key.clone(),
            (Kind::Radosgw, "") => name.clone(),
            (Kind::Radosgw, tenant) => format!("{tenant}${name}"),
        };
        // The sidecar requires secrets of at least 16 bytes.
        Self { secret_key: format!("the-secret-of-{name}"), access_key, id, name, tenant }
    }
}

/// A running endpoint. Dropping this value ends the endpoint and removes its data.
#[derive(Debug)]
pub struct Endpoint {
    kind: Kind,
    url: String,
    process: Process,
}

#[derive(Debug)]
enum Process {
    Versitygw { child: Child, program: PathBuf, _dir: tempfile::TempDir },
    Radosgw(Cluster),
}

const ROOT: [&str; 2] = ["root-of-versitygw", "secret-of-root"];

/// The configuration of radosgw that s3-tests expect: lifecycles by the second, and keys for
/// encryption. Deleted data are removed within seconds: by default they would stay for two hours,
/// and five passes would fill the cluster's memory.
const RADOSGW: &str = "[client.rgw]
rgw_lc_debug_interval = 10
rgw_gc_obj_min_wait = 5
rgw_gc_processor_period = 10
rgw_crypt_require_ssl = false
rgw_crypt_s3_kms_backend = testing
rgw_crypt_s3_kms_encryption_keys = testkey-1=YmluCmJvb3N0CmJvb3N0LWJ1aWxkCmNlcGguY29uZgo= \
testkey-2=aWIKTWFrZWZpbGUKbWFuCm91dApzcmMKVGVzdGluZwo=
rgw_enable_usage_log = false
";

/// Returns the path of versitygw, as installed by `go install` or, below `parent`, by `.ci/long`.
pub fn find_versitygw(parent: &Path) -> Option<PathBuf> {
    let built = parent.join("tools/versitygw");
    find_program("versitygw").or_else(|| built.is_file().then_some(built))
}

impl Endpoint {
    /// Starts an endpoint whose state is below `parent`. If its program is not installed, returns
    /// `None`, and prints that `test` is skipped.
    ///
    /// # Panics
    /// Panics if the endpoint does not start.
    pub fn start(kind: Kind, test: &str, parent: &Path) -> Option<Self> {
        match kind {
            Kind::Versitygw => Self::versitygw_in(parent, test, parent),
            Kind::Radosgw => Self::radosgw(test, parent),
        }
    }

    /// Starts versitygw like [`start`](Self::start), with its objects in the directory `place`. An
    /// object's metadata are in extended attributes, which a tmpfs of kernels before 6.6 lacks.
    ///
    /// # Panics
    /// If the endpoint does not start.
    pub fn versitygw_in(place: &Path, test: &str, parent: &Path) -> Option<Self> {
        let Some(program) = find_versitygw(parent) else {
            skip(
                test,
                "versitygw is not installed (go install github.com/versity/versitygw/cmd/versitygw@v1.8.0)",
            );
            return None;
        };
        let dir = tempfile::Builder::new().prefix("versitygw").tempdir_in(place).expect("a directory");
        // versitygw mistakes a path that is a prefix of another one for its parent directory.
        let place = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("a directory");
            path
        };
        let [objects, versions, users] = [place("objects"), place("versions"), place("users")];
        let (child, url) = bring_up("versitygw", |port| {
            let log = File::create(dir.path().join("log")).expect("a log file");
            let mut command = Command::new(&program);
            command.args(["--port", &format!("127.0.0.1:{port}"), "--quiet", "--keep-alive"]);
            command.args(["--virtual-domain", "localhost", "--iam-dir"]).arg(&users);
            command.arg("posix").arg("--versioning-dir").arg(&versions).arg(&objects);
            command.env("ROOT_ACCESS_KEY_ID", ROOT[0]).env("ROOT_SECRET_ACCESS_KEY", ROOT[1]);
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
            kill_with_thread(&mut command);
            let mut child = command.spawn().expect("versitygw runs");
            is_up(&mut child, port).then(|| (child, format!("http://127.0.0.1:{port}")))
        });
        Some(Self { kind: Kind::Versitygw, url, process: Process::Versitygw { child, program, _dir: dir } })
    }

    fn radosgw(test: &str, parent: &Path) -> Option<Self> {
        if !are_installed(test, &["radosgw", "radosgw-admin"]) {
            return None;
        }
        let cluster = Cluster::in_memory(test, parent)?;
        let mut conf = OpenOptions::new().append(true).open(cluster.conf()).expect("Ceph's configuration");
        conf.write_all(RADOSGW.as_bytes()).expect("Ceph's configuration");
        cluster.dev("rgw", &["start"]);
        let url = std::fs::read_to_string(cluster.dir().join("rgw/endpoint")).expect("its address");
        Some(Self { kind: Kind::Radosgw, url: url.trim().to_owned(), process: Process::Radosgw(cluster) })
    }

    /// Returns the kind of the program.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the URL, with an IP address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the endpoint accepts connections.
    pub fn is_up(&self) -> bool {
        TcpStream::connect(self.url.trim_start_matches("http://")).is_ok()
    }

    /// Adds a user who may create buckets.
    ///
    /// # Panics
    /// Panics if the endpoint refuses the user.
    pub fn add(&self, user: &User) {
        let mut command;
        match &self.process {
            Process::Versitygw { program, .. } => {
                command = Command::new(program);
                command.args(["admin", "--allow-insecure", "-a", ROOT[0], "-s", ROOT[1], "-er", &self.url]);
                command.args([
                    "create-user",
                    "-a",
                    &user.access_key,
                    "-s",
                    &user.secret_key,
                    "-r",
                    "userplus",
                ]);
            }
            Process::Radosgw(cluster) => {
                command = Command::new("radosgw-admin");
                command.env("CEPH_CONF", cluster.conf()).args(["--ms-mon-client-mode=crc", "user", "create"]);
                command.args(["--uid", &user.name, "--display-name", &user.name]);
                command.args(["--email", &format!("{}@example.com", user.name), "--tenant", user.tenant]);
                command.args(["--access-key", &user.access_key, "--secret", &user.secret_key]);
                command.args(["--caps", "user-policy=*;roles=*"]);
            }
        }
        let output = run(&mut command, DEADLINE);
        assert!(output.status.success(), "{user:?}: {}", text(&output));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Process::Versitygw { child, .. } = self {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
