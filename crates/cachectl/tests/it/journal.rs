//! `cachectl journal` on journals that are intact, in use, damaged or missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use cached_journal::{Head, Journal, JournalConfig, Kind, Object, Position, Record, Scope};
use serde_json::Value;

use crate::cachectl::{mount_read_only, unmount};

const WRITE: Kind = Kind(1);
const DELETE: Kind = Kind(7);
const SEGMENT_BYTES: u64 = 1 << 20;

struct Probe {
    dir: tempfile::TempDir,
}

impl Probe {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn journal(&self) -> PathBuf {
        self.path("journal")
    }

    fn open(&self) -> Journal {
        let config = JournalConfig {
            segment_bytes: SEGMENT_BYTES,
            limit_bytes: 4 * SEGMENT_BYTES,
            direct: false,
            ..JournalConfig::new(self.journal())
        };
        Journal::open(&config, Arc::new(|_| {})).unwrap().0
    }

    /// Creates a journal with three writes to `vm/a`, one to `vm/b`, and a removal of `vm/c`. Each
    /// change is a batch.
    fn filled(self) -> Self {
        let journal = self.open();
        for (kind, name, offset, data) in [
            (WRITE, "a", 0, &b"first"[..]),
            (WRITE, "b", 100, b"other"),
            (WRITE, "a", 3, b"second"),
            (DELETE, "c", 0, b""),
            (WRITE, "a", 4096, b"third"),
        ] {
            append(&journal, kind, name, offset, data);
        }
        journal.close().unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_cachectl")).args(arguments).output().unwrap()
    }

    fn journal_command(&self, command: &str, more: &[&str]) -> Output {
        let directory = self.journal();
        let mut arguments = vec!["--json", "journal", command, directory.to_str().unwrap()];
        arguments.extend(more);
        self.run(&arguments)
    }

    #[track_caller]
    fn journal_ends(&self, command: &str, more: &[&str], code: i32) -> Vec<Value> {
        let output = self.journal_command(command, more);
        let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{command}: {text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    fn exported(&self, to: &str, name: &str) -> Vec<u8> {
        let backend = format!("file:{}", self.path(to).display());
        let output = self.run(&["--backend", &backend, "--namespace", "vm", "get", name]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    }

    /// Changes one byte of a segment.
    fn flip(&self, segment: &str, offset: u64) {
        let path = self.journal().join(segment);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[offset as usize] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Appends a record as a cache does: see `change_log/records.rs` of cached-core.
fn append(journal: &Journal, kind: Kind, name: &str, offset: u64, data: &[u8]) -> Position {
    let key = [&[2][..], b"vm", name.as_bytes()].concat();
    let head = Head {
        namespace: 1,
        offset,
        len: data.len() as u64,
        sequence: 7,
        epoch: 5,
        ..Head::new(kind, Object::Name(key.into()))
    };
    let appended = journal.append(&Record { head, payload: &[data] }).unwrap();
    journal.wait_blocking(appended.position).unwrap();
    appended.position
}

/// Returns the position of a payload's text in a segment.
fn place(path: &Path, payload: &[u8]) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(payload.len()).position(|window| window == payload).unwrap() as u64
}

#[test]
fn an_intact_journal_is_inspected_verified_and_exported() {
    let probe = Probe::new().filled();
    let inspected = &probe.journal_ends("inspect", &[], 0)[0];
    assert_eq!((&inspected["records"], &inspected["problem"]), (&5.into(), &Value::Null));
    let namespace = &inspected["namespaces"][0];
    assert_eq!((&namespace["namespace"], &namespace["epoch_max"]), (&"vm".into(), &5.into()));
    assert_eq!(namespace["payload_bytes"], 21);
    let shown = text(&probe.run(&["journal", "inspect", probe.journal().to_str().unwrap()]).stdout);
    assert!(shown.contains("namespace  vm: 5 records, 21 bytes, epoch 5"), "{shown}");
    assert!(shown.ends_with("verdict      intact, the next start replays it\n"), "{shown}");
    assert_eq!(probe.journal_ends("verify", &[], 0)[0]["damaged"], 0);

    let lines = probe.journal_ends("export", &[probe.path("saved").to_str().unwrap()], 0);
    let object = |name: &str| lines.iter().find(|line| line["object"] == format!("vm/{name}")).unwrap();
    assert_eq!(object("a")["ranges"], serde_json::json!([[0, 9], [4096, 4101]]));
    assert_eq!((&object("a")["state"], &object("a")["records"]), (&"in part".into(), &3.into()));
    assert_eq!((&object("c")["state"], &object("c")["ranges"]), (&"removed".into(), &serde_json::json!([])));
    let saved = probe.exported("saved", "a");
    assert_eq!((&saved[..9], &saved[4096..]), (&b"firsecond"[..], &b"third"[..]));
    assert_eq!(probe.exported("saved", "b")[100..], b"other"[..]);
    // Existing files are not overwritten.
    let again = probe.journal_ends("export", &[probe.path("saved").to_str().unwrap()], 2);
    assert!(again[0]["message"].as_str().unwrap().contains("already exists"), "{again:?}");
    assert_eq!(probe.exported("saved", "a"), saved);
}

#[test]
fn what_a_mark_covers_is_exported_only_on_request() {
    let probe = Probe::new();
    let journal = probe.open();
    let stored = append(&journal, WRITE, "a", 0, b"stored");
    let mark = Head { namespace: 1, ..Head::mark(Scope::Namespace, stored) };
    journal.append(&Record { head: mark, payload: &[] }).unwrap();
    append(&journal, WRITE, "a", 6, b"+not");
    journal.close().unwrap();
    let lines = probe.journal_ends("export", &[probe.path("pending").to_str().unwrap()], 0);
    assert_eq!(lines[0]["ranges"], serde_json::json!([[6, 10]]));
    let lines = probe.journal_ends("export", &["--all", probe.path("all").to_str().unwrap()], 0);
    assert_eq!(lines[0]["ranges"], serde_json::json!([[0, 10]]));
    assert_eq!(probe.exported("all", "a"), b"stored+not");
}

#[test]
fn a_journal_in_use_is_left_alone() {
    let probe = Probe::new().filled();
    let holder = probe.open();
    for (command, more) in
        [("inspect", &[][..]), ("verify", &[]), ("export", &["saved"]), ("discard", &["--yes"])]
    {
        let lines = probe.journal_ends(command, more, 2);
        assert!(lines[0]["message"].as_str().unwrap().contains("is in use"), "{command}: {lines:?}");
    }
    drop(holder);
    assert_eq!(probe.journal_ends("inspect", &[], 0)[0]["records"], 5);
}

#[test]
fn a_damaged_payload_is_found_and_the_rest_is_saved() {
    let probe = Probe::new().filled();
    let segment = "segment-000000";
    let at = place(&probe.journal().join(segment), b"second");
    probe.flip(segment, at);
    let damage = probe.journal_ends("verify", &[], 1);
    assert_eq!((&damage[0]["file"], &damage[0]["offset"]), (&segment.into(), &at.into()), "{damage:?}");
    assert_eq!(damage[1]["damaged"], 1);
    let lines = probe.journal_ends("export", &[probe.path("saved").to_str().unwrap()], 1);
    assert_eq!(lines[0]["ranges"], serde_json::json!([[0, 5], [4096, 4101]]));
    assert_eq!(lines.last().unwrap()["unreadable"], 1);
    assert_eq!(probe.exported("saved", "b")[100..], b"other"[..]);
}

#[test]
fn a_journal_that_the_start_refuses_is_inspected_and_what_is_intact_saved() {
    let probe = Probe::new().filled();
    let segment = "segment-000000";
    // This block contains the heads of the third batch; the batch's payload shares the block with
    // them.
    let block = place(&probe.journal().join(segment), b"second") / 4096 * 4096;
    probe.flip(segment, block + 40);
    let inspected = &probe.journal_ends("inspect", &[], 1)[0];
    assert_eq!((&inspected["records"], &inspected["problem"]["file"]), (&Value::Null, &segment.into()));
    let shown = text(&probe.run(&["journal", "inspect", probe.journal().to_str().unwrap()]).stdout);
    assert!(
        shown.contains("verdict      damaged, the next start refuses it: segment-000000 at byte"),
        "{shown}"
    );
    probe.journal_ends("verify", &[], 1);
    let lines = probe.journal_ends("export", &[probe.path("saved").to_str().unwrap()], 1);
    // Records after the damage are saved as well, and the gap is reported.
    assert_eq!(lines[0]["ranges"], serde_json::json!([[0, 5], [4096, 4101]]));
    println!("{lines:?}");
    let saved = probe.exported("saved", "a");
    assert_eq!((&saved[..5], &saved[4096..]), (&b"first"[..], &b"third"[..]));
}

#[test]
fn no_damage_makes_a_command_fail_otherwise() {
    let files = ["journal", "segment-000000", "segment-000001"];
    for (round, file) in files.iter().cycle().take(24).enumerate() {
        let probe = Probe::new().filled();
        // The damage is in the superblock and headers, in batches, and in the data after them.
        probe.flip(
            file,
            [3, 13, 70, 4096 + 9, 8192 + 5, 8192 + 66, 12_288 + 30][round % 7] % 40_000 % size(&probe, file),
        );
        for command in ["inspect", "verify"] {
            let output = probe.journal_command(command, &[]);
            assert!(matches!(output.status.code(), Some(0..=2)), "{round} {command}: {output:?}");
            assert!(!text(&output.stderr).contains("panicked"), "{round} {command}: {output:?}");
        }
        let output = probe.journal_command("export", &[probe.path("saved").to_str().unwrap()]);
        assert!(matches!(output.status.code(), Some(0..=2)), "{round}: {output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{round}: {output:?}");
    }
}

fn size(probe: &Probe, file: &str) -> u64 {
    std::fs::metadata(probe.journal().join(file)).unwrap().len()
}

#[test]
fn a_journal_is_discarded_only_by_request() {
    let probe = Probe::new().filled();
    let refused = probe.journal_ends("discard", &[], 2);
    let message = refused[0]["message"].as_str().unwrap();
    assert!(message.contains("5 records, 21 bytes, would be lost; --yes discards it"), "{message}");
    assert_eq!(probe.journal_ends("inspect", &[], 0)[0]["records"], 5);
    probe.journal_ends("discard", &["--yes"], 0);
    assert_eq!(probe.journal_ends("inspect", &[], 0)[0]["records"], 0);
    // An empty journal remains, which the next start uses, with its own segment size.
    assert!(!probe.journal().join("segment-000000").exists());
    probe.open().close().unwrap();
    let inspected = probe.journal_ends("inspect", &[], 0);
    assert_eq!((&inspected[0]["records"], &inspected[0]["segment_bytes"]), (&0.into(), &(1 << 20).into()));
}

#[test]
fn nothing_is_made_in_a_directory_without_a_journal() {
    let probe = Probe::new();
    std::fs::create_dir(probe.journal()).unwrap();
    std::fs::write(probe.journal().join("letter"), "mine").unwrap();
    for (command, more) in
        [("inspect", &[][..]), ("verify", &[]), ("export", &["saved"]), ("discard", &["--yes"])]
    {
        let lines = probe.journal_ends(command, more, 2);
        assert!(
            lines[0]["message"].as_str().unwrap().contains("contains no journal"),
            "{command}: {lines:?}"
        );
    }
    assert_eq!(std::fs::read_dir(probe.journal()).unwrap().count(), 1);
    let missing = probe.run(&["journal", "inspect", probe.path("nowhere").to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("nowhere is not a directory"), "{}", text(&missing.stderr));
    assert!(!probe.path("nowhere").exists());
}

#[test]
fn a_damaged_last_batch_of_a_journal_that_was_not_closed_is_reported() {
    let probe = Probe::new();
    let journal = probe.open();
    append(&journal, WRITE, "a", 0, b"first");
    append(&journal, WRITE, "b", 0, b"second");
    // The journal has the state that a crash leaves, without data after the last batch.
    let crashed = Probe::new();
    std::fs::create_dir(crashed.journal()).unwrap();
    // Excludes segments that are still being created.
    for file in ["journal", "segment-000000"] {
        std::fs::copy(probe.journal().join(file), crashed.journal().join(file)).unwrap();
    }
    drop(journal);
    assert_eq!(crashed.journal_ends("verify", &[], 0)[0]["damaged"], 0);
    let segment = "segment-000000";
    let payload = place(&crashed.journal().join(segment), b"second");
    let block = payload / 4096 * 4096;
    // Magic number, check, number, counts, the first position, a head, and the payload.
    for at in [block, block + 5, block + 8, block + 20, block + 32, block + 70, payload] {
        crashed.flip(segment, at);
        let lines = crashed.journal_ends("verify", &[], 1);
        assert_eq!(
            (&lines[0]["file"], &lines[0]["offset"]),
            (&segment.into(), &block.into()),
            "{at}: {lines:?}"
        );
        assert!(lines[0]["reason"].as_str().unwrap().contains("is incomplete"), "{at}: {lines:?}");
        let inspected = &crashed.journal_ends("inspect", &[], 0)[0];
        assert_eq!(
            (&inspected["records"], &inspected["cut_off"]["offset"]),
            (&1.into(), &block.into()),
            "{at}"
        );
        let to = crashed.path(&format!("saved-{at}"));
        let exported = crashed.journal_ends("export", &[to.to_str().unwrap()], 1);
        assert_eq!(exported.last().unwrap()["unreadable"], 1, "{at}: {exported:?}");
        crashed.flip(segment, at);
    }
    assert_eq!(crashed.journal_ends("verify", &[], 0)[0]["damaged"], 0);
    assert!(!crashed.journal().join("lock").exists(), "reading has made a file");
}

#[test]
fn a_journal_of_another_user_or_on_a_read_only_mount_is_only_read() {
    let probe = Probe::new().filled();
    let entries = || {
        let mut entries: Vec<_> =
            std::fs::read_dir(probe.journal()).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries
    };
    std::fs::remove_file(probe.journal().join("lock")).unwrap();
    let before = entries();
    probe.journal_ends("inspect", &[], 0);
    probe.journal_ends("verify", &[], 0);
    probe.journal_ends("export", &[probe.path("saved").to_str().unwrap()], 0);
    assert_eq!(entries(), before);
    if !mount_read_only("a journal on a read-only mount", &probe.journal()) {
        return;
    }
    let to = probe.path("saved-again");
    let outputs =
        [("inspect", &[][..]), ("verify", &[]), ("export", &[to.to_str().unwrap()]), ("discard", &["--yes"])]
            .map(|(command, more)| probe.journal_command(command, more));
    // Before any assertion, so that the mount is always removed.
    unmount(&probe.journal());
    assert_eq!(
        outputs.each_ref().map(|output| output.status.code()),
        [Some(0), Some(0), Some(0), Some(2)],
        "{outputs:?}"
    );
    assert_eq!(entries(), before);
}

#[test]
fn what_is_no_file_holds_no_command_up() {
    for file in ["journal", "segment-000000", "lock"] {
        let probe = Probe::new().filled();
        let path = probe.journal().join(file);
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        for command in ["inspect", "verify"] {
            let lines = probe.journal_ends(command, &[], 2);
            let message = lines[0]["message"].as_str().unwrap();
            assert!(
                message.contains("could not be read") && message.contains("not a regular file"),
                "{message}"
            );
        }
    }
}
