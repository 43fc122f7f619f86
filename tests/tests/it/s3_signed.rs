//! `cached` in front of an S3 endpoint that checks signatures (versitygw): requests that the
//! endpoint refuses are refused even if the object is cached, and boto3, aws-cli, rclone, Arrow and
//! s3fs read their own writes through the sidecar.

use cached_tests::daemon::{DEADLINE, wait_for};
use cached_tests::outside::{announce_skip, are_installed, find_program, run, skip, text};
use cached_tests::program::repository;
use cached_tests::python;
use cached_tests::s3::endpoint::{Endpoint, Kind, User};
use cached_tests::s3::sidecar::Sidecar;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

fn folder() -> PathBuf {
    repository().join("tests/s3")
}

/// An endpoint with a user, and a sidecar in front of it.
struct Both {
    sidecar: Sidecar,
    endpoint: Endpoint,
    owner: User,
    directory: tempfile::TempDir,
}

impl Both {
    fn start(test: &str) -> Option<Both> {
        let endpoint = Endpoint::start(Kind::Versitygw, test, Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let owner = User::new(Kind::Versitygw, "owner", 0);
        endpoint.add(&owner);
        let sidecar = Sidecar::before(endpoint.url(), "domains = [\"localhost\"]");
        Some(Both { sidecar, endpoint, owner, directory: tempfile::tempdir().expect("a directory") })
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command that must succeed, in the directory of the test and with the owner's keys;
    /// returns its output.
    fn run(&self, command: &mut Command) -> String {
        command.current_dir(self.directory.path()).env("HOME", self.directory.path());
        command.env("AWS_ACCESS_KEY_ID", &self.owner.access_key);
        command.env("AWS_SECRET_ACCESS_KEY", &self.owner.secret_key);
        command.envs([("AWS_DEFAULT_REGION", "us-east-1"), ("NO_PROXY", "127.0.0.1,localhost")]);
        // rclone 1.60 fails if this variable names a file.
        command.env_remove("AWS_CA_BUNDLE");
        let output = run(command, DEADLINE);
        assert!(output.status.success(), "{command:?}:\n{}", text(&output));
        text(&output)
    }

    /// Runs a script, which must print that it has passed; returns its output.
    fn play(&self, test: &str, script: &str, arguments: &[&str]) -> Option<String> {
        let programs = programs(test)?;
        let mut command = Command::new(programs.join("python"));
        let said = self.run(command.arg(folder().join(script)).args(arguments));
        assert!(said.contains("passed"), "{script}:\n{said}");
        Some(said)
    }

    /// Checks that the sidecar has served responses from memory, and that no request has failed in
    /// the sidecar.
    fn check_requests(&self, hits_min: u64) {
        let hits = self.sidecar.requests("hit");
        assert!(hits >= hits_min, "{hits} hits");
        for result in ["failed", "refused"] {
            assert_eq!(self.sidecar.requests(result), 0, "{result}");
        }
    }

    /// Creates a tree of files with names and sizes of several kinds.
    fn make_files(&self, name: &str) {
        fs::create_dir_all(self.place(name).join("deep er")).expect("directories");
        for (file, len) in [("a", 1), ("b.txt", 100_000), ("deep er/ü+", 9_000_000), ("deep er/c", 4096)] {
            let bytes: Vec<u8> = (0..len).map(|at: u32| (at ^ (at >> 9)) as u8).collect();
            fs::write(self.place(name).join(file), bytes).expect("a file");
        }
    }

    fn assert_same(&self, one: &str, other: &str) {
        self.run(Command::new("diff").args(["-r", one, other]));
    }
}

/// Returns the directory of Python's programs, which is shared with the tests of moto's endpoint.
fn programs(test: &str) -> Option<PathBuf> {
    static PROGRAMS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3-clients");
        python::install(&environment, &folder().join("requirements.txt"))
    };
    match PROGRAMS.get_or_init(install) {
        Ok(programs) => Some(programs.clone()),
        Err(why) => {
            skip(test, why);
            None
        }
    }
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn what_the_endpoint_refuses_is_refused_with_the_object_in_memory() {
    let test = "signatures through the sidecar";
    let Some(both) = Both::start(test) else { return };
    let other = User::new(Kind::Versitygw, "other", 0);
    both.endpoint.add(&other);
    let named = |user: &User| format!("{}:{}", user.access_key, user.secret_key);
    let users = [named(&both.owner), named(&other)];
    let arguments = [&both.sidecar.url, both.endpoint.url(), &users[0], &users[1]];
    if both.play(test, "signed.py", &arguments).is_some() {
        both.check_requests(20);
    }
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn two_sidecars_of_one_endpoint_never_go_back() {
    let test = "histories through two sidecars and versitygw";
    let Some(both) = Both::start(test) else { return };
    let other = Sidecar::before(both.endpoint.url(), "");
    let urls = format!("{},{}", both.sidecar.url, other.url);
    if both.play(test, "history.py", &[&urls, "900", "3"]).is_some() {
        both.check_requests(10);
        assert!(other.requests("hit") > 0);
    }
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn arrow_reads_columns_of_parquet_files() {
    let test = "Parquet through the sidecar";
    let Some(both) = Both::start(test) else { return };
    let arguments = [both.sidecar.url.as_str(), &both.owner.access_key, &both.owner.secret_key];
    if both.play(test, "parquet.py", &arguments).is_some() {
        both.check_requests(10);
    }
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn aws_cli_synchronises_directories() {
    let test = "aws-cli through the sidecar";
    let Some(both) = Both::start(test) else { return };
    let Some(programs) = programs(test) else { return };
    let aws = |arguments: &[&str]| {
        let mut command = Command::new(programs.join("python"));
        command.arg(programs.join("aws")).args(["--endpoint-url", &both.sidecar.url]).args(arguments);
        both.run(&mut command)
    };
    both.make_files("source");
    aws(&["s3", "mb", "s3://files"]);
    aws(&["s3", "sync", "source", "s3://files/by-aws"]);
    for target in ["cold", "warm"] {
        aws(&["s3", "sync", "s3://files/by-aws", target]);
        both.assert_same("source", target);
    }
    // One file is changed, and one is removed.
    fs::write(both.place("source/b.txt"), b"short").expect("a file");
    fs::remove_file(both.place("source/a")).expect("a file that goes");
    aws(&["s3", "sync", "--delete", "source", "s3://files/by-aws"]);
    aws(&["s3", "sync", "--delete", "s3://files/by-aws", "warm"]);
    both.assert_same("source", "warm");
    aws(&["s3", "rm", "--recursive", "s3://files/by-aws"]);
    aws(&["s3", "rb", "s3://files"]);
    both.check_requests(4);
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn rclone_synchronises_checks_and_keeps_both_sides_equal() {
    let test = "rclone through the sidecar";
    if !are_installed(test, &["rclone"]) {
        return;
    }
    let Some(both) = Both::start(test) else { return };
    let remote = |place: &str| {
        let User { access_key, secret_key, .. } = &both.owner;
        format!(
            ":s3,provider=Other,access_key_id={access_key},secret_access_key={secret_key},region=us-east-1,endpoint='{}':files/{place}",
            both.sidecar.url
        )
    };
    let rclone =
        |arguments: &[&str]| both.run(Command::new("rclone").args(arguments).args(["--config", "/dev/null"]));
    both.make_files("source");
    let one = remote("one");
    rclone(&["mkdir", &remote("")]);
    rclone(&["sync", "source", &one]);
    for target in ["cold", "warm"] {
        rclone(&["check", "source", &one]);
        rclone(&["check", "--download", "source", &one]);
        rclone(&["sync", &one, target]);
        both.assert_same("source", target);
    }

    // Both sides have changes.
    let (here, there, state) = ("here", remote("two"), both.place("state").display().to_string());
    let bisync = |more: &[&str]| {
        let mut all = vec!["bisync", here, &there, "--workdir", &state, "--verbose"];
        all.extend(more);
        rclone(&all)
    };
    both.make_files(here);
    bisync(&["--resync"]);
    fs::write(both.place("here/b.txt"), b"changed here").expect("a file");
    fs::write(both.place("there.txt"), b"changed there").expect("a file");
    rclone(&["copyto", "there.txt", &format!("{there}/deep er/c")]);
    rclone(&["deletefile", &format!("{there}/a")]);
    bisync(&[]);
    assert_eq!(fs::read(both.place("here/deep er/c")).expect("the changed file"), b"changed there");
    assert!(!both.place("here/a").exists(), "a file that was deleted there");
    assert_eq!(rclone(&["cat", &format!("{there}/b.txt")]), "changed here");
    rclone(&["check", "--download", here, &there]);
    both.check_requests(4);
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn s3fs_mounts_a_bucket() {
    let test = "s3fs through the sidecar";
    let Some(s3fs) = find_program("s3fs") else { return skip(test, "there is no s3fs") };
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return announce_skip(test, "/dev/fuse cannot be opened");
    }
    let Some(both) = Both::start(test) else { return };
    let Some(programs) = programs(test) else { return };
    let mut make = Command::new(programs.join("python"));
    make.arg(programs.join("aws")).args(["--endpoint-url", &both.sidecar.url, "s3", "mb", "s3://mounted"]);
    both.run(&mut make);
    both.make_files("source");
    fs::create_dir(both.place("mount")).expect("a directory");
    {
        let _mount = Mount::new(&s3fs, &both);
        both.run(Command::new("cp").args(["-r", "source/.", "mount"]));
        both.assert_same("source", "mount");
    }
    // The new s3fs has an empty cache, but the sidecar does not.
    for _ in 0..2 {
        let _mount = Mount::new(&s3fs, &both);
        both.assert_same("source", "mount");
    }
    both.check_requests(4);
    let _mount = Mount::new(&s3fs, &both);
    for place in ["source", "mount"] {
        fs::write(both.place(place).join("b.txt"), b"short").expect("a file that changes");
        fs::remove_file(both.place(place).join("deep er/ü+")).expect("a file that goes");
        fs::rename(both.place(place).join("a"), both.place(place).join("renamed"))
            .expect("a file that moves");
    }
    both.assert_same("source", "mount");
}

/// An s3fs file system. Dropping this value unmounts it.
struct Mount {
    child: Child,
    place: PathBuf,
}

impl Mount {
    fn new(s3fs: &Path, both: &Both) -> Mount {
        let [keys, place, log] = ["keys", "mount", "s3fs.log"].map(|name| both.place(name));
        fs::write(&keys, format!("{}:{}\n", both.owner.access_key, both.owner.secret_key))
            .expect("a file of keys");
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).expect("a file of keys");
        let options = format!(
            "url={},use_path_request_style,endpoint=us-east-1,passwd_file={}",
            both.sidecar.url,
            keys.display()
        );
        let file = File::create(&log).expect("a log file");
        // s3fs runs in the foreground, so that the test can wait for its end.
        let mut command = Command::new(s3fs);
        command.arg("mounted").arg(&place).args(["-f", "-o", &options]).stdin(Stdio::null());
        let child =
            command.stdout(file.try_clone().expect("a log file")).stderr(file).spawn().expect("s3fs runs");
        let mut mount = Mount { child, place };
        wait_for("the mount", || {
            let ended = mount.child.try_wait().expect("the state of s3fs");
            assert!(ended.is_none(), "s3fs has ended:\n{}", fs::read_to_string(&log).unwrap_or_default());
            mount.is_there().then_some(())
        });
        mount
    }

    fn is_there(&self) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
        mounts.contains(&format!(" {} ", self.place.display()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Waits until the written data have been sent.
        let unmounted = Command::new("fusermount").arg("-u").arg(&self.place).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // s3fs unmounts the file system when it ends. A failed test may have left the mount in
            // any state.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
