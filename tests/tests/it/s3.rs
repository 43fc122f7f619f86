//! `cached` in front of an S3 endpoint (moto's, which is installed from PyPI), used by unmodified
//! boto3, aws-cli and rclone.

use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::http;
use cached_tests::outside::{are_installed, run, skip, text};
use cached_tests::program::repository;
use cached_tests::python;
use cached_tests::s3::sidecar::Sidecar;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(400);

fn folder() -> PathBuf {
    repository().join("tests/s3")
}

/// Returns the directory of Python's programs.
fn programs() -> Result<PathBuf, String> {
    static PROGRAMS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3-clients");
        python::install(&environment, &folder().join("requirements.txt"))
    };
    PROGRAMS.get_or_init(install).clone()
}

/// An endpoint and a sidecar in front of it.
struct Both {
    endpoint: Child,
    daemon: Daemon,
    programs: PathBuf,
    endpoint_url: String,
    sidecar_url: String,
}

impl Drop for Both {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.endpoint.kill();
        let _ = self.endpoint.wait();
    }
}

impl Both {
    /// Starts the endpoint and the sidecar. If the endpoint cannot be installed, prints a line and
    /// returns `None`.
    fn start(test: &str) -> Option<Both> {
        let programs = match programs() {
            Ok(programs) => programs,
            Err(why) => {
                skip(test, &why);
                return None;
            }
        };
        let mut endpoint = Command::new(programs.join("python"))
            .arg(folder().join("server.py"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the endpoint");
        let mut line = String::new();
        let out = endpoint.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let endpoint_url = format!("http://127.0.0.1:{}", line.trim());
        let daemon = Daemon::start("cached", |_| {
            format!(
                "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{endpoint_url}\"\n\
                 memory_bytes_max = \"64 MiB\"\n[[s3.buckets]]\nname = \"shared\"\nmemory_bytes_min = \"1 MiB\"\nupstream_requests_per_second_max = 1000\n"
            )
        });
        let sidecar_url = format!("http://{}", daemon.announced("S3 on "));
        Some(Both { endpoint, daemon, programs, endpoint_url, sidecar_url })
    }

    /// Runs a script, which must print that it has passed.
    fn play(&self, script: &str, arguments: &[&str]) {
        let mut command = Command::new(self.programs.join("python"));
        command.arg(folder().join(script)).args(arguments).env("NO_PROXY", "127.0.0.1");
        let output = run(&mut command, DEADLINE);
        assert!(output.status.success() && text(&output).contains("passed"), "{script}:\n{}", text(&output));
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, shown) = http::get(&self.daemon.admin, "/metrics");
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{shown}")).parse().expect("a number")
    }
}

#[test]
#[ignore = "long: s3, before moto"]
fn boto3_reads_and_changes_objects_through_the_sidecar() {
    let Some(both) = Both::start("boto3 through the sidecar") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().display().to_string();
    both.play("everyday.py", &[&both.sidecar_url, &both.endpoint_url, &place]);
    assert!(both.metric("cached_s3_sidecar_requests_total{result=\"hit\"}") > 30);
    assert_eq!(both.metric("cached_s3_sidecar_requests_total{result=\"failed\"}"), 0);
    assert_eq!(both.metric("cached_s3_sidecar_requests_total{result=\"refused\"}"), 0);
}

#[test]
#[ignore = "long: s3, before moto"]
fn concurrent_changes_are_seen_by_every_later_read() {
    let Some(both) = Both::start("histories through the sidecar") else { return };
    both.play("history.py", &[&both.sidecar_url, "600", "1"]);
    assert!(both.metric("cached_s3_sidecar_requests_total{result=\"hit\"}") > 0);
}

#[test]
#[ignore = "long: s3, before moto"]
fn two_sidecars_of_one_endpoint_never_go_back() {
    let Some(both) = Both::start("histories through two sidecars") else { return };
    let other = Sidecar::before(&both.endpoint_url, "");
    both.play("history.py", &[&format!("{},{}", both.sidecar_url, other.url), "600", "2"]);
    assert!(both.metric("cached_s3_sidecar_requests_total{result=\"hit\"}") > 0);
    assert!(other.requests("hit") > 0);
}

#[test]
#[ignore = "long: s3, with aws-cli and rclone"]
fn aws_cli_and_rclone_synchronise_directories_through_the_sidecar() {
    let Some(both) = Both::start("aws-cli and rclone through the sidecar") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(place("source/deep er")).expect("directories");
    for (name, len) in [("a", 0), ("b.txt", 100_000), ("deep er/ü+", 9_000_000), ("deep er/c", 1)] {
        let bytes: Vec<u8> = (0..len).map(|at: u32| (at ^ (at >> 9)) as u8).collect();
        std::fs::write(place("source").join(name), bytes).expect("a file");
    }
    let is_equal = |target: &str| {
        let mut compare = Command::new("diff");
        let output = run(compare.arg("-r").arg(place("source")).arg(place(target)), DEADLINE);
        assert!(output.status.success(), "{target}:\n{}", text(&output));
    };
    let aws = |arguments: &[&str]| {
        let mut command = Command::new(both.programs.join("python"));
        command.arg(both.programs.join("aws")).args(["--endpoint-url", &both.sidecar_url]).args(arguments);
        command.current_dir(directory.path()).env("HOME", directory.path());
        command.envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        command.envs([("AWS_DEFAULT_REGION", "us-east-1"), ("NO_PROXY", "127.0.0.1")]);
        let output = run(&mut command, DEADLINE);
        assert!(output.status.success(), "aws {arguments:?}:\n{}", text(&output));
    };
    aws(&["s3", "mb", "s3://files"]);
    aws(&["s3", "sync", "source", "s3://files/by-aws"]);
    for target in ["cold", "warm"] {
        aws(&["s3", "sync", "s3://files/by-aws", target]);
        is_equal(target);
    }
    aws(&["s3", "rm", "--recursive", "s3://files/by-aws"]);

    if !are_installed("rclone through the sidecar", &["rclone"]) {
        return;
    }
    let remote = format!(
        ":s3,provider=Other,access_key_id=key,secret_access_key=secret,region=us-east-1,endpoint='{}':files/by-rclone",
        both.sidecar_url
    );
    let rclone = |arguments: &[&str]| {
        let mut command = Command::new("rclone");
        command.args(arguments).args(["--config", "/dev/null"]).current_dir(directory.path());
        // rclone 1.60 fails if this variable names a file.
        command.env("NO_PROXY", "127.0.0.1").env_remove("AWS_CA_BUNDLE");
        let output = run(&mut command, DEADLINE);
        assert!(output.status.success(), "rclone {arguments:?}:\n{}", text(&output));
    };
    rclone(&["sync", "source", &remote]);
    for target in ["by-rclone", "by-rclone-again"] {
        rclone(&["check", "--download", "source", &remote]);
        rclone(&["sync", &remote, target]);
        is_equal(target);
    }
}

#[test]
#[ignore = "long: s3, before moto"]
fn the_end_of_the_program_lets_requests_finish() {
    let Some(both) = Both::start("the end of the sidecar") else { return };
    let address = both.sidecar_url.trim_start_matches("http://");
    let mut idle = TcpStream::connect(address).expect("a connection");
    idle.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).expect("an answer");
    assert_eq!(&begin, b"HTTP/1.1 200");
    both.daemon.signal(libc::SIGTERM);
    // An idle connection is closed in an orderly way, and the process ends.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).expect("an end in order");
    wait_for("the listener closes", || TcpStream::connect(address).is_err().then_some(()));
}
