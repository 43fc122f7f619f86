//! The real binary, as a user runs it.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use test_kit::outside::skip;

struct Probe {
    dir: tempfile::TempDir,
}

impl Probe {
    /// Creates a directory with a store.
    fn new() -> Self {
        let probe = Self::empty();
        blocker::FileStore::create(probe.path("store")).unwrap();
        probe
    }

    fn empty() -> Self {
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

    /// Asserts that the command fails with this status and one line that contains the text.
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
    assert!(String::from_utf8_lossy(&usage.stderr).contains("is not a backend"));
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let probe = Probe::empty();
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
    // Once the process has reported that the store is open, it waits for its input.
    let reported = format!("{}\n", holder.id());
    let is_open = || std::fs::read_to_string(probe.path("store/lock")).is_ok_and(|text| text == reported);
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
    // After a shorter put no old stripes remain.
    let less = probe.file("less", b"less");
    probe.ok(&["put", "--stripe", "big", &less]);
    assert_eq!(probe.ok(&["get", "--stripe", "big"]), b"less");
    probe.ok(&["rm", "--stripe", "big"]);
    probe.fails(&["get", "--stripe", "big"], 3, "no such object");
    // Data of exactly the limit are one object.
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
    probe.fails(&["conformance", "no such case"], 2, "no case has a name that contains");
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
        // The other copy replaces it, and a process that may write restores the second copy.
        probe.ok(&["ls"]);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        probe.ok(&["flush"]);
        assert_ne!(std::fs::read(&path).unwrap(), bytes);
    }
    for name in ["superblock", "superblock.copy"] {
        std::fs::write(probe.path("store").join(name), b"nonsense").unwrap();
    }
    probe.fails(&["ls"], 6, "store --repair");
}

#[test]
fn a_store_is_checked_and_repaired() {
    let probe = Probe::empty();
    let store = probe.path("store");
    let fsck = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        let output = command.arg("fsck").arg(&store).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // The store does not exist, so there is nothing to check.
    let (code, _, error) = fsck(&[]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    blocker::FileStore::create(&store).unwrap();
    let input = probe.file("in", b"kept");
    for name in ["one", "two"] {
        probe.ok(&["put", name, &input]);
    }
    let (code, output, _) = fsck(&[]);
    assert_eq!((code, output.as_str()), (Some(0), "2 objects, 0 remembered deletions: in order\n"));
    // The damage affects one copy of a header and one of the superblock.
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
    assert_eq!(std::fs::read(store.join("damaged/0-superblock")).unwrap(), b"nonsense");
    // An open store is refused.
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
    assert!(error.contains("expected cached, journaled, replicated(NODES) or stored"), "{error}");
}

#[test]
fn a_store_is_made_on_request_only() {
    let probe = Probe::empty();
    let input = probe.file("in", b"x");
    let (store, mounted) = (probe.path("store"), probe.path("mounted"));
    std::fs::create_dir(&mounted).unwrap();
    for dir in [&store, &mounted] {
        let backend = format!("file:{}", dir.display());
        for command in [&["ls"][..], &["get", "x"], &["put", "x", &input], &["rm", "x"], &["conformance"]] {
            let arguments = [&["--backend", &backend], command].concat();
            let output = Command::new(env!("CARGO_BIN_EXE_cachectl")).args(&arguments).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), error.lines().count()), (Some(4), 1), "{command:?}: {error}");
            let way_on = format!("there is no store in {0}: `cachectl init {0}` creates one", dir.display());
            assert!(error.contains(&way_on), "{error}");
        }
    }
    assert!(!store.exists() && std::fs::read_dir(&mounted).unwrap().next().is_none());
    let init = |dir: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_cachectl")).arg("init").arg(dir).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for dir in [&store, &mounted, &probe.path("with/parents")] {
        assert_eq!(init(dir), (Some(0), String::new()));
        let (code, error) = init(dir);
        assert_eq!(code, Some(4), "{error}");
        assert!(error.contains("there is already a store in"), "{error}");
    }
    probe.ok(&["put", "x", &input]);
    // No store is created in a directory with other files.
    let other = probe.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("letter"), "mine").unwrap();
    let (code, error) = init(&other);
    assert_eq!(code, Some(4), "{error}");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
}

/// Returns whether this test may act for other users; otherwise prints that it is skipped.
fn is_root() -> bool {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        skip("acting for another user", "only root may do this");
    }
    is_root
}

/// Makes a directory a read-only mount of itself, which [`unmount`] undoes. Returns whether it is one;
/// otherwise prints that `test` is skipped.
pub(crate) fn mount_read_only(test: &str, dir: &Path) -> bool {
    let mount = |arguments: &[&str]| {
        let done = Command::new("mount").args(arguments).arg(dir).arg(dir).output();
        done.is_ok_and(|done| done.status.success())
    };
    let is_bound = mount(&["--bind"]);
    let is_mounted = is_bound && mount(&["-o", "remount,bind,ro"]);
    if is_bound && !is_mounted {
        unmount(dir);
    }
    if !is_mounted {
        skip(test, "this machine does not let tests mount");
    }
    is_mounted
}

#[track_caller]
pub(crate) fn unmount(dir: &Path) {
    assert!(Command::new("umount").arg(dir).status().unwrap().success(), "{} stays mounted", dir.display());
}

/// Owner, inode, length and modification time, in seconds and nanoseconds.
type State = (u32, u64, u64, i64, i64);

/// Returns the state of everything below a directory.
fn snapshot(dir: &Path) -> Vec<(std::path::PathBuf, State)> {
    let (mut left, mut found) = (vec![dir.to_path_buf()], Vec::new());
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        found.push((path, (metadata.uid(), metadata.ino(), metadata.len(), changed.0, changed.1)));
    }
    found.sort();
    found
}

const SERVICE: u32 = 65_534;

#[test]
fn reading_a_store_of_another_user_changes_nothing_and_what_root_makes_there_is_that_users() {
    if !is_root() {
        return;
    }
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    probe.ok(&["put", "x", &input]);
    let store = probe.path("store");
    for (path, _) in snapshot(&store) {
        std::os::unix::fs::lchown(path, Some(SERVICE), Some(SERVICE)).unwrap();
    }
    let before = snapshot(&store);
    for command in [&["ls"][..], &["get", "x"], &["info", "x"], &["stats"]] {
        probe.ok(command);
    }
    let fsck = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        command.arg("fsck").arg(&store).args(arguments).output().unwrap()
    };
    assert_eq!(fsck(&[]).status.code(), Some(0));
    assert_eq!(snapshot(&store), before);
    std::fs::write(store.join("claims"), "nonsense").unwrap();
    assert_eq!(fsck(&["--repair"]).status.code(), Some(1));
    probe.ok(&["--namespace", "new", "put", "y", &input]);
    let owners: Vec<_> = snapshot(&store).into_iter().filter(|(_, (uid, ..))| *uid != SERVICE).collect();
    assert!(owners.is_empty(), "{owners:?}");
}

#[test]
fn what_cannot_be_read_is_not_taken_for_damage_and_not_repaired() {
    if !is_root() {
        return;
    }
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    probe.ok(&["put", "x", &input]);
    let store = probe.path("store");
    for dir in [probe.path(""), store.clone()] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The program is copied to a place where this user may run it; by another process, because one that
    // another test starts here meanwhile would inherit the open copy, which then cannot be run.
    let program = probe.path("cachectl");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_cachectl")).arg(&program).status().unwrap();
    assert!(copied.success());
    for files in [&["claims", "claims.copy"][..], &["superblock"], &["objects/default.ns/x.obj"]] {
        let paths: Vec<_> = files.iter().map(|name| store.join(name)).collect();
        let set_mode = |mode| {
            for path in &paths {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        };
        set_mode(0o600);
        let before = snapshot(&store);
        for repair in [&[][..], &["--repair"]] {
            let mut command = Command::new(&program);
            let output =
                command.uid(SERVICE).gid(SERVICE).arg("fsck").arg(&store).args(repair).output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(output.status.code(), Some(2), "{files:?}: {text}");
            for path in &paths {
                let line = format!("could not be checked: {}: Permission denied", path.display());
                assert!(text.contains(&line), "{files:?}: {text}");
            }
            assert!(!text.contains("damage:"), "{files:?}: {text}");
            assert_eq!(snapshot(&store), before, "{files:?}");
        }
        let mut command = Command::new(&program);
        command.arg("--backend").arg(format!("file:{}", store.display())).args(["get", "x"]);
        let output = command.uid(SERVICE).gid(SERVICE).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        if files.len() == 2 || files[0].starts_with("objects") {
            assert_eq!(output.status.code(), Some(4), "{files:?}: {error}");
            assert!(error.contains(&paths[0].display().to_string()), "{error}");
            assert!(!error.contains("fsck") && !error.contains("corrupt"), "{error}");
        } else {
            // The intact copy suffices.
            assert!(output.status.success(), "{error}");
        }
        set_mode(0o644);
    }
}

#[test]
fn a_fifo_in_the_place_of_a_file_holds_nothing_up() {
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    for name in ["x", "y"] {
        probe.ok(&["put", name, &input]);
    }
    let store = probe.path("store");
    let put_fifo = |name: &str| {
        let path = store.join(name);
        let _ = std::fs::remove_file(&path);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
    };
    let fsck = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        let output = command.arg("fsck").arg(&store).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    for name in ["superblock", "claims.copy", "lock"] {
        put_fifo(name);
    }
    assert_eq!(probe.ok(&["get", "x"]), b"x");
    let (code, text) = fsck(&["--repair"]);
    assert_eq!((code, text.matches("it is a FIFO, not a regular file").count()), (Some(1), 2), "{text}");
    put_fifo("objects/default.ns/x.obj");
    probe.fails(&["get", "x"], 6, "is a FIFO, not a regular file; `cachectl fsck` sets it aside");
    probe.fails(&["ls"], 6, "is a FIFO");
    assert_eq!(probe.ok(&["get", "y"]), b"x");
    put_fifo("tmp/left");
    let (code, text) = fsck(&["--repair"]);
    assert_eq!(code, Some(1), "{text}");
    probe.ok(&["put", "x", &input]);
    assert_eq!(probe.ok(&["ls", "-1"]), b"x\ny\n");
    assert_eq!(fsck(&[]).0, Some(0));
}

#[test]
fn a_read_only_mount_is_read() {
    let probe = Probe::new();
    let input = probe.file("in", b"x");
    probe.ok(&["put", "x", &input]);
    let store = probe.path("store");
    if !mount_read_only("a store on a read-only mount", &store) {
        return;
    }
    let outputs = [&["get", "x"][..], &["ls", "-1"], &["put", "x", &input], &["rm", "x"]]
        .map(|command| probe.run(command));
    let fsck = [&[][..], &["--repair"]].map(|repair| {
        Command::new(env!("CARGO_BIN_EXE_cachectl")).arg("fsck").arg(&store).args(repair).output().unwrap()
    });
    // Before any assertion, so that the mount is always removed.
    unmount(&store);
    assert_eq!(outputs[0].stdout, b"x");
    assert_eq!(outputs[1].stdout, b"x\n");
    for changing in &outputs[2..] {
        assert_eq!(changing.status.code(), Some(4), "{changing:?}");
    }
    for check in fsck {
        assert_eq!(check.status.code(), Some(0), "{check:?}");
    }
}

#[test]
fn a_command_whose_output_nobody_reads_ends_without_a_word() {
    let probe = Probe::new();
    let input = probe.file("in", &pattern(100_000));
    probe.ok(&["put", "x", &input]);
    let store = probe.path("store").display().to_string();
    let fsck = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        command.args(["fsck", &store]);
        command
    };
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let commands = [&["ls"][..], &["get", "x"], &["info", "x"], &["stats"], &["flush"], &["--json", "ls"]];
    for mut command in commands.map(|command| probe.command(command)).into_iter().chain([fsck]) {
        let output =
            command.stdout(closed()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{command:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    }
    // The result is the same if the failure concerns data that the command does not read.
    for (arguments, code) in [(&["get", "absent"][..], 3), (&["ls"], 141)] {
        let status = probe.command(arguments).stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    // The store was closed properly each time, so no version has changed.
    assert_eq!(probe.ok(&["get", "x"]), pattern(100_000));
}

#[test]
fn objects_are_removed_from_a_full_disk() {
    let probe = Probe::empty();
    let input = probe.file("in", &pattern(300_000));
    let store = probe.path("store");
    std::fs::create_dir(&store).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&store).output();
    if !mounted.is_ok_and(|done| done.status.success()) {
        return skip("a full disk", "this machine does not let tests mount");
    }
    let init = Command::new(env!("CARGO_BIN_EXE_cachectl")).arg("init").arg(&store).output().unwrap();
    let put = probe.run(&["put", "x", &input]);
    // Fills every remaining block.
    let mut filler = std::fs::File::create(store.join("tmp/filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let results = [&["put", "y", &input][..], &["ls", "-1"], &["rm", "x"], &["ls", "-1"]]
        .map(|command| probe.run(command));
    // Before any assertion, so that the mount is always removed.
    drop(filler);
    unmount(&store);
    assert!(init.status.success() && put.status.success(), "{init:?} {put:?}");
    let codes = results.each_ref().map(|output| output.status.code());
    assert_eq!(codes, [Some(5), Some(0), Some(0), Some(0)], "{results:?}");
    assert_eq!((&*results[1].stdout, &*results[3].stdout), (&b"x\n"[..], &b""[..]));
}
