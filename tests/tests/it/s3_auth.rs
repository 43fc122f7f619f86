//! `cached` verifies the signatures of S3 clients, and signs its own requests: boto3 and rclone use
//! it in front of versitygw, which also verifies signatures, or of moto's server, which does not.

use cached_tests::daemon::{Daemon, wait_for, write_secret};
use cached_tests::http;
use cached_tests::outside::{run, skip, text};
use cached_tests::program::repository;
use cached_tests::python;
use cached_tests::s3::endpoint::find_versitygw;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(400);

const KEYS: &str = r#"
[[keys]]
access_key = "owner"
secret_key = "owner-secret-0123456789"
read = ["*"]
write = ["*"]

[[keys]]
access_key = "reader"
secret_key = "reader-secret-0123456789"
read = ["bucket"]

[[keys]]
access_key = "part"
secret_key = "part-secret-0123456789"
read = ["bucket/in/"]
write = ["bucket/in/"]
"#;

/// The endpoint's own secret, which must not appear in the sidecar's responses and log.
const ROOT_SECRET: &str = "root-secret-0123456789";

fn folder() -> PathBuf {
    repository().join("tests/s3")
}

/// An endpoint. Dropping this value ends the endpoint.
struct Endpoint {
    child: Child,
    url: String,
    _directory: tempfile::TempDir,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Endpoint {
    fn start(programs: &Path) -> Endpoint {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(program) = find_versitygw(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
            let mut command = Command::new(programs.join("python"));
            let command = command.arg(folder().join("server.py")).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn().expect("the endpoint");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
            return Endpoint {
                child,
                url: format!("http://127.0.0.1:{}", line.trim()),
                _directory: directory,
            };
        };
        // The endpoint cannot choose a port itself; if another program takes this one, the endpoint
        // ends.
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let mut command = Command::new(program);
        command.args([
            "--port",
            &free.to_string(),
            "--access",
            "root",
            "--secret",
            ROOT_SECRET,
            "--quiet",
            "posix",
        ]);
        command.arg("--sidecar").arg(directory.path().join("meta"));
        command.arg(directory.path().join("objects"));
        for name in ["meta", "objects"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("the endpoint");
        wait_for("the endpoint listens", || TcpStream::connect(free).ok());
        Endpoint { child, url: format!("http://{free}"), _directory: directory }
    }
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn clients_sign_for_the_sidecar_and_the_sidecar_signs_for_the_endpoint() {
    let test = "signatures at the sidecar";
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3-clients");
    let programs = match python::install(&environment, &folder().join("requirements.txt")) {
        Ok(programs) => programs,
        Err(why) => return skip(test, &why),
    };
    let endpoint = Endpoint::start(&programs);
    let daemon = Daemon::start("cached", |place| {
        let (keys, secret) = (format!("{place}/keys.toml"), format!("{place}/secret"));
        write_secret(Path::new(&keys), KEYS);
        write_secret(Path::new(&secret), ROOT_SECRET);
        format!(
            "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{}\"\nmemory_bytes_max = \"64 MiB\"\n\
             auth = \"listener\"\nkeys_file = \"{keys}\"\nupstream_access_key = \"root\"\nupstream_secret_file = \"{secret}\"\n",
            endpoint.url
        )
    });
    let url = format!("http://{}", daemon.announced("S3 on "));
    let mut command = Command::new(programs.join("python"));
    command.arg(folder().join("listener.py")).arg(&url).env("NO_PROXY", "127.0.0.1");
    let output = run(&mut command, DEADLINE);
    assert!(output.status.success() && text(&output).contains("passed"), "{}", text(&output));

    let metric = |name: &str| {
        let (_, shown) = http::get(&daemon.admin, "/metrics");
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{shown}")).parse::<u64>().expect("a number")
    };
    for reason in ["signature", "unknown_key", "rights", "anonymous", "malformed", "body"] {
        let name = format!("cached_s3_sidecar_auth_refused_total{{reason=\"{reason}\"}}");
        assert!(metric(&name) > 0, "{name}");
    }
    assert!(metric("cached_s3_sidecar_requests_total{result=\"revalidated\"}") > 10);
    assert_eq!(metric("cached_s3_sidecar_requests_total{result=\"failed\"}"), 0);

    // An invalid file changes nothing; a valid one is in force after SIGHUP.
    let aws = |name: &str| {
        let mut command = Command::new(programs.join("python"));
        command.arg(programs.join("aws")).args(["--endpoint-url", &url, "s3", "ls", "s3://bucket/plain"]);
        command.envs([
            ("AWS_ACCESS_KEY_ID", name),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("NO_PROXY", "127.0.0.1"),
        ]);
        command
            .env("AWS_SECRET_ACCESS_KEY", format!("{name}-secret-0123456789"))
            .env("HOME", daemon.path(""));
        run(&mut command, DEADLINE).status.success()
    };
    assert!(aws("reader") && !aws("late"));
    let lines = || daemon.log().lines().filter(|line| line.contains("s3.keys_file")).count();
    write_secret(&daemon.path("keys.toml"), &KEYS.replace("read = [\"bucket\"]", "read = \"bucket-secret\""));
    daemon.signal(libc::SIGHUP);
    wait_for("a line that refuses the file", || (lines() > 0).then_some(()));
    assert!(aws("reader"));
    let before = lines();
    write_secret(&daemon.path("keys.toml"), &KEYS.replace("reader", "late"));
    daemon.signal(libc::SIGHUP);
    wait_for("a line that takes it", || (lines() > before).then_some(()));
    assert!(aws("late") && !aws("reader"));

    let (_, shown) = daemon.cachectl(&["config", "s3"]);
    assert!(shown.contains("s3.keys_file"), "{shown}");
    for secret in ["secret-0123456789", "bucket-secret"] {
        assert!(!daemon.log().contains(secret) && !shown.contains(secret), "{secret}");
    }
}
