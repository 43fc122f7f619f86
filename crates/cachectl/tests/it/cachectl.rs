//! The real binary, as a person uses it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

struct Probe {
    dir: tempfile::TempDir,
}

impl Probe {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        command.arg("--backend").arg(format!("file:{}", self.path("store").display())).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// It fails with this code and one line that contains the text.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, text: &str) {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(text), "{error:?} does not contain {text:?}");
        assert_eq!(error.lines().count(), 1, "more than one line: {error:?}");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251) as u8).collect()
}

#[test]
fn what_is_put_is_got_copied_listed_and_removed() {
    let probe = Probe::new();
    let content = pattern(3_000_001);
    let input = probe.file("in", &content);
    let output = String::from_utf8(probe.ok(&["put", "disk/0", &input])).unwrap();
    assert!(output.starts_with("3000001 bytes stored as default/disk/0"), "{output}");
    assert_eq!(probe.ok(&["get", "disk/0"]), content);
    probe.ok(&["cp", "disk/0", "copy"]);
    let out = probe.path("out");
    probe.ok(&["get", "copy", out.to_str().unwrap()]);
    assert_eq!(std::fs::read(&out).unwrap(), content);
    let listed = String::from_utf8(probe.ok(&["ls"])).unwrap();
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["3000001", "copy", "3000001", "disk/0"]);
    assert_eq!(probe.ok(&["ls", "-1", "disk"]), b"disk/0\n");
    probe.ok(&["rm", "disk/0"]);
    assert_eq!(probe.ok(&["ls", "-1"]), b"copy\n");
    assert_eq!(probe.ok(&["flush"]), b"stored\n");
    // Another namespace has other objects.
    assert_eq!(probe.ok(&["--namespace", "other", "ls"]), b"");
}

#[test]
fn standard_input_is_taken_and_versions_stay_between_runs() {
    let probe = Probe::new();
    let mut child = probe.command(&["--json", "put", "piped"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    let output = child.wait_with_output().unwrap();
    let put: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(put["size_bytes"], 11);
    let info: serde_json::Value = serde_json::from_slice(&probe.ok(&["--json", "info", "piped"])).unwrap();
    assert_eq!(info["version"], put["version"]);
    assert_eq!(info["stamp"], serde_json::Value::Null);
    assert_eq!(probe.ok(&["get", "piped", "-"]), b"from a pipe");
}

#[test]
fn errors_are_one_clear_line_and_an_exit_code() {
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    probe.fails(&["get", "absent"], 3, "default/absent: no such object");
    probe.fails(&["rm", "absent"], 3, "no such object");
    probe.fails(&["info", ""], 2, "1 to 255 bytes");
    probe.fails(&["put", "x", "/no/such/file"], 1, "/no/such/file");
    probe.ok(&["put", "x", &input]);
    probe.fails(&["put", "--new", "x", &input], 4, "exists already");
    probe.fails(&["--json", "get", "absent"], 3, r#""error":"missing""#);
    // A failed get leaves no file behind.
    let out = probe.path("out");
    probe.fails(&["get", "absent", out.to_str().unwrap()], 3, "no such object");
    assert!(!out.exists());
    let usage =
        Command::new(env!("CARGO_BIN_EXE_cachectl")).args(["--backend", "tape:0", "ls"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("no kind of backend"));
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let probe = Probe::new();
    std::fs::create_dir(probe.path("store")).unwrap();
    probe.file("store/precious", b"data");
    probe.fails(&["ls"], 4, "is not a store");
    assert_eq!(std::fs::read(probe.path("store/precious")).unwrap(), b"data");
}

#[test]
fn a_held_directory_is_refused_and_names_its_holder() {
    let probe = Probe::new();
    let mut holder = probe.command(&["put", "slow"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // It has the store open once it has reported that, and waits for its input.
    let is_open = || std::fs::read_to_string(probe.path("store/lock")).is_ok_and(|text| text.ends_with('\n'));
    while !is_open() {
        assert!(holder.try_wait().unwrap().is_none(), "the holder has ended");
        std::thread::yield_now();
    }
    probe.fails(&["ls"], 4, &format!("held by another process (process {})", holder.id()));
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(probe.ok(&["ls", "-1"]), b"slow\n");
}

#[test]
fn what_is_larger_than_an_object_is_refused_or_striped() {
    let probe = Probe::new();
    let content = pattern(9_000_000);
    let input = probe.file("in", &content);
    probe.fails(&["put", "big", &input], 2, "larger than an object may be (4194304 bytes); --stripe");
    let output: serde_json::Value =
        serde_json::from_slice(&probe.ok(&["--json", "put", "--stripe", "big", &input])).unwrap();
    assert_eq!(output["stripes"], 3);
    assert_eq!(probe.ok(&["get", "--stripe", "big"]), content);
    // Putting less leaves nothing of the old stripes.
    let less = probe.file("less", b"less");
    probe.ok(&["put", "--stripe", "big", &less]);
    assert_eq!(probe.ok(&["get", "--stripe", "big"]), b"less");
    probe.ok(&["rm", "--stripe", "big"]);
    probe.fails(&["get", "--stripe", "big"], 3, "no such object");
    // An object of exactly the limit is one object.
    let exact = probe.file("exact", &content[..4 << 20]);
    probe.ok(&["put", "exact", &exact]);
    assert_eq!(probe.ok(&["get", "exact"]).len(), 4 << 20);
}

#[test]
fn any_backend_can_be_tested_against_the_contract() {
    let probe = Probe::new();
    let output = String::from_utf8(probe.ok(&["conformance"])).unwrap();
    assert!(output.contains("pass content::holes_read_as_zeros"), "{output}");
    assert!(output.contains("skip crash::"), "{output}");
    assert!(output.lines().last().unwrap().contains(" 0 failed"), "{output}");
    probe.fails(&["conformance", "no such case"], 2, "no case is called");
    let faulty = Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(["--backend", "faulty:seed=3,unknown_permille=200:memory:", "--json", "conformance", "content"])
        .output()
        .unwrap();
    assert_eq!(faulty.status.code(), Some(1));
    let lines = String::from_utf8(faulty.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(last["failed"].as_u64().unwrap() > 0, "{last}");
}

#[test]
fn a_damaged_store_is_refused() {
    let probe = Probe::new();
    probe.ok(&["ls"]);
    for name in ["superblock", "superblock.copy", "claims"] {
        let path = probe.path("store").join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[10] ^= 0xff;
        std::fs::write(Path::new(&path), &bytes).unwrap();
        // The other copy stands in for it.
        probe.ok(&["ls"]);
    }
    for name in ["superblock", "superblock.copy"] {
        std::fs::write(probe.path("store").join(name), b"nonsense").unwrap();
    }
    probe.fails(&["ls"], 6, "store --repair");
}

#[test]
fn a_store_is_checked_and_repaired() {
    let probe = Probe::new();
    let store = probe.path("store");
    let fsck = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        let output = command.arg("fsck").arg(&store).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // Nothing that could be checked.
    let (code, _, error) = fsck(&[]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    let input = probe.file("in", b"kept");
    for name in ["one", "two"] {
        probe.ok(&["put", name, &input]);
    }
    let (code, output, _) = fsck(&[]);
    assert_eq!((code, output.as_str()), (Some(0), "2 objects, 0 remembered deletions: in order\n"));
    // One copy of a header and one of the superblock.
    let object = store.join("objects/default.ns/one.obj");
    let mut content = std::fs::read(&object).unwrap();
    content[9] ^= 4;
    std::fs::write(&object, content).unwrap();
    std::fs::write(store.join("superblock"), b"nonsense").unwrap();
    let (code, output, _) = fsck(&[]);
    assert_eq!((code, output.matches("damage: ").count()), (Some(1), 2), "{output}");
    assert!(output.ends_with("2 damaged; run again with --repair\n"), "{output}");
    let (code, output, _) = fsck(&["--repair"]);
    assert_eq!((code, output.matches("damage: ").count()), (Some(1), 2), "{output}");
    let (code, output, _) = fsck(&[]);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(probe.ok(&["get", "one"]), b"kept");
    // While it is open it is refused.
    let held = blocker::FileStore::open(&store).unwrap();
    let (code, _, error) = fsck(&["--repair"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("held by another process (process "), "{error}");
    drop(held);
}

#[test]
fn a_command_without_a_backend_names_what_is_missing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
    let output = command.arg("ls").env_remove("CACHECTL_BACKEND").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("--backend file:DIR"), "{error}");
}

#[test]
fn the_durability_that_was_reached_is_stated() {
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    for asked in ["cached", "journaled", "stored"] {
        let output =
            String::from_utf8(probe.ok(&["--json", "put", "--durability", asked, "o", &input])).unwrap();
        let value: serde_json::Value = serde_json::from_str(&output).unwrap();
        let reached: blocker::Durability = value["durability"].as_str().unwrap().parse().unwrap();
        assert!(reached >= asked.parse().unwrap(), "{asked}: {output}");
    }
    assert_eq!(probe.ok(&["flush", "--durability", "journaled"]), b"stored\n", "a file store has no journal");
    let output = probe.run(&["put", "--durability", "safe", "o", &input]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("there are cached, journaled, replicated(NODES) or stored"), "{error}");
}
