//! Import and export of volumes, with file stores and the real binary.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Durability, FileStore};
use serde_json::Value;
use volumes::{OpenOptions, Options, Settings, Volumes};

const MIB: u64 = 1 << 20;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns a `cachectl volume` command on the store with this name. An argument with the prefix
    /// `FILE:` is a file in the test's directory.
    fn command(&self, store: &str, arguments: &[&str]) -> Command {
        if !self.path(store).exists() {
            FileStore::create(self.path(store)).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        command.arg("--backend").arg(format!("file:{}", self.text(store))).arg("volume");
        for argument in arguments {
            match argument.strip_prefix("FILE:") {
                Some(name) => command.arg(self.path(name)),
                None => command.arg(argument),
            };
        }
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn ok(&self, store: &str, arguments: &[&str]) -> Vec<u8> {
        let output = self.command(store, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    #[track_caller]
    fn fails(&self, store: &str, arguments: &[&str], code: i32, text: &str) {
        failed(&self.command(store, arguments).output().unwrap(), code, text);
    }

    /// Opens the volumes of a store, while no command has the store open.
    fn volumes(&self, store: &str) -> Volumes {
        let store = FileStore::open_or_create(self.path(store)).unwrap();
        Volumes::new(Arc::new(store), Options { owner: "test".to_owned(), ..Options::new("volumes") })
            .unwrap()
    }

    fn is_there(&self, store: &str, name: &str) -> bool {
        block_on(self.volumes(store).list()).unwrap().volumes.iter().any(|info| info.name == name)
    }

    /// Creates a file of this size with these bytes at these positions, and holes between them.
    fn sparse(&self, name: &str, size: u64, content: &[(u64, &[u8])]) -> Vec<u8> {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(size).unwrap();
        for (offset, bytes) in content {
            file.write_all_at(bytes, *offset).unwrap();
        }
        std::fs::read(self.path(name)).unwrap()
    }
}

/// Asserts that the command failed with this status and one line that contains the text.
#[track_caller]
fn failed(output: &Output, code: i32, text: &str) {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(text), "{error:?} does not contain {text:?}");
    assert_eq!(error.lines().count(), 1, "more than one line: {error:?}");
}

#[track_caller]
fn same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: the length");
    // The search is slow without optimisation, and for the message only.
    let differs = || found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert!(found == wanted, "{what}: byte {:?}", differs());
}

/// Returns the disk space of the files below a directory, in bytes.
fn taken(path: &Path) -> u64 {
    if !path.is_dir() {
        return path.metadata().unwrap().blocks() * 512;
    }
    std::fs::read_dir(path).unwrap().map(|entry| taken(&entry.unwrap().path())).sum()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251) as u8 | 1).collect()
}

#[test]
fn an_image_comes_back_and_stays_sparse() {
    let place = Place::new();
    let data = pattern(300_000);
    let size = 200 * MIB + 1000;
    let image = place.sparse("in", size, &[(4096, &data), (90 * MIB - 5000, &data), (size - 100, &[1; 100])]);
    let output = String::from_utf8(place.ok("store", &["import", "disk", "FILE:in"])).unwrap();
    assert!(output.starts_with("disk is a volume of 200.0 MiB, "), "{output}");
    assert!(taken(&place.path("store")) < 4 * MIB, "{} bytes for the store", taken(&place.path("store")));
    place.ok("store", &["export", "disk", "FILE:out"]);
    same(&std::fs::read(place.path("out")).unwrap(), &image, "the file");
    assert!(taken(&place.path("out")) < 2 * MIB, "{} bytes for the file", taken(&place.path("out")));
    same(&place.ok("store", &["export", "disk"]), &image, "standard output");
    // A device has no holes: its old content must be overwritten.
    let fifo = place.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = std::thread::spawn(move || std::fs::read(fifo).unwrap());
    place.ok("store", &["export", "disk", "FILE:fifo"]);
    same(&reader.join().unwrap(), &image, "a pipe with a name");
}

#[test]
fn an_image_may_be_smaller_than_its_volume_and_come_from_a_pipe() {
    let place = Place::new();
    place.sparse("in", 5 * MIB, &[(0, &[7; 65536])]);
    let set = ["--json", "import", "--size", "20G", "--set", "object_bytes=64K", "--set", "write=none"];
    let output = place.ok("store", &[&set[..], &["disk", "FILE:in"]].concat());
    let value: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!((value["size_bytes"].as_u64(), value["data_bytes"].as_u64()), (Some(20 << 30), Some(65536)));
    let info = block_on(place.volumes("store").info("disk")).unwrap();
    assert_eq!(info.object_bytes, 65536);
    assert_eq!(info.owner, None, "it was not given up");
    // The image is longer than the volume's initial data, and has an odd length.
    let mut image = vec![0; 130 * MIB as usize + 77];
    image[70 * MIB as usize..][..4].copy_from_slice(b"data");
    image[130 * MIB as usize + 76] = 9;
    let mut child = place.command("store", &["import", "piped"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&image).unwrap();
    assert!(child.wait().unwrap().success());
    same(&place.ok("store", &["export", "piped", "-"]), &image, "what was piped");
    assert!(taken(&place.path("store")) < 4 * MIB);
}

#[test]
fn a_volume_is_overwritten_only_as_a_whole_and_on_request() {
    let place = Place::new();
    place.sparse("old", 9 * MIB, &[(0, &pattern(9 * MIB as usize))]);
    let new = place.sparse("new", 6 * MIB, &[(5000, b"new"), (6 * MIB - 1, b"!")]);
    place.ok("store", &["import", "disk", "FILE:old"]);
    place.fails("store", &["import", "disk", "FILE:new"], 4, "\"disk\" exists already");
    place.ok("store", &["import", "--existing", "disk", "FILE:new"]);
    let found = place.ok("store", &["export", "disk"]);
    same(&found[..new.len()], &new, "what the image has");
    assert!(found.len() as u64 == 9 * MIB && found[new.len()..].iter().all(|byte| *byte == 0), "the rest");
    place.sparse("large", 10 * MIB, &[(5000, b"x")]);
    place.fails(
        "store",
        &["import", "--existing", "disk", "FILE:large"],
        2,
        "is larger than disk, which has 9 MiB",
    );
}

#[test]
fn what_has_changed_goes_from_store_to_store() {
    let place = Place::new();
    place.sparse("in", 64 * MIB, &[(0, &pattern(9_000_000)), (40 * MIB, &pattern(5000))]);
    place.ok("a", &["import", "disk", "FILE:in"]);
    {
        let volumes = place.volumes("a");
        block_on(async {
            volumes.snapshot("disk", "monday").await.unwrap();
            let disk = volumes.open("disk", OpenOptions::default()).await.unwrap();
            disk.write(40 * MIB, b"changed".into(), Durability::Cached).await.unwrap();
            disk.write_zeroes(0, 4 * MIB, true, false).await.unwrap();
            volumes.resize("disk", 70 * MIB).await.unwrap();
            disk.write(70 * MIB - 4, b"last".into(), Durability::Cached).await.unwrap();
            disk.close().await.unwrap();
            volumes.snapshot("disk", "tuesday").await.unwrap();
        });
    }
    place.ok("a", &["export-diff", "disk@monday", "FILE:full"]);
    let output = place.ok("a", &["export-diff", "--from", "monday", "disk@tuesday", "FILE:change"]);
    assert!(String::from_utf8(output).unwrap().starts_with("disk@tuesday since monday is written to "));
    let length = std::fs::metadata(place.path("change")).unwrap().len();
    assert!(length < 9 * MIB, "{length} bytes for two objects");
    // A change imported out of order is refused.
    place.fails("b", &["import-diff", "copy", "FILE:change"], 3, "there is no volume \"copy\"");
    place.ok("b", &["import-diff", "copy", "FILE:full"]);
    same(&place.ok("b", &["export", "copy"]), &place.ok("a", &["export", "disk@monday"]), "the first stream");
    // The stream is imported through a pipe.
    let stream = place.ok("a", &["export-diff", "--from", "monday", "disk@tuesday"]);
    let mut child = place.command("b", &["import-diff", "copy"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&stream).unwrap();
    assert!(child.wait().unwrap().success());
    for snapshot in ["monday", "tuesday"] {
        let [a, b] = [("a", "disk"), ("b", "copy")]
            .map(|(store, name)| place.ok(store, &["export", &format!("{name}@{snapshot}")]));
        same(&b, &a, snapshot);
    }
    same(&place.ok("b", &["export", "copy"]), &place.ok("a", &["export", "disk"]), "the volumes");
    // The second time, the volume no longer matches the beginning of the stream.
    place.fails("b", &["import-diff", "copy", "FILE:change"], 4, "copy@tuesday");
    place.fails("b", &["import-diff", "copy", "FILE:full"], 4, "copy@monday");
}

#[test]
fn a_stream_that_fails_leaves_everything_as_it_was() {
    let place = Place::new();
    place.sparse("in", 8 * MIB, &[(0, &pattern(8 * MIB as usize))]);
    place.ok("a", &["import", "disk", "FILE:in"]);
    let change = |text: &'static [u8]| {
        let volumes = place.volumes("a");
        block_on(async {
            let disk = volumes.open("disk", OpenOptions::default()).await.unwrap();
            disk.write(100, text.into(), Durability::Cached).await.unwrap();
            disk.close().await.unwrap();
        });
    };
    let snapshot = |name: &str| block_on(place.volumes("a").snapshot("disk", name)).unwrap();
    snapshot("one");
    change(b"two");
    snapshot("two");
    place.ok("a", &["export-diff", "disk@one", "FILE:full"]);
    place.ok("a", &["export-diff", "--from", "one", "disk@two", "FILE:change"]);
    let cut = |name: &str| {
        let stream = std::fs::read(place.path(name)).unwrap();
        std::fs::write(place.path("cut"), &stream[..stream.len() - 1000]).unwrap();
    };
    cut("full");
    place.fails(
        "b",
        &["import-diff", "copy", "FILE:cut"],
        2,
        "the stream ends too early; nothing is left of copy",
    );
    assert!(!place.is_there("b", "copy"));
    // The stream is imported into an empty volume of another size.
    block_on(place.volumes("b").create("copy", MIB, Settings::default())).unwrap();
    place.fails("b", &["import-diff", "copy", "FILE:cut"], 2, "the stream ends too early; copy is unchanged");
    assert_eq!(place.ok("b", &["export", "copy"]), vec![0; MIB as usize]);
    place.ok("b", &["import-diff", "copy", "FILE:full"]);
    let before = place.ok("b", &["export", "copy"]);
    cut("change");
    place.fails("b", &["import-diff", "copy", "FILE:cut"], 2, "the stream ends too early; copy is unchanged");
    same(&place.ok("b", &["export", "copy"]), &before, "the volume before the stream");
    place.ok("b", &["import-diff", "copy", "FILE:change"]);
    // The volume was written to since the last import.
    change(b"3");
    place.ok("a", &["export-diff", "disk@two", "FILE:two"]);
    snapshot("three");
    place.ok("a", &["export-diff", "--from", "two", "disk@three", "FILE:change"]);
    {
        let volumes = place.volumes("b");
        block_on(async {
            let disk = volumes.open("copy", OpenOptions::default()).await.unwrap();
            disk.write(0, b"other".into(), Durability::Cached).await.unwrap();
            disk.close().await.unwrap();
        });
    }
    place.fails("b", &["import-diff", "copy", "FILE:change"], 2, "was changed since its snapshot two");
}

#[test]
fn errors_are_one_line_and_change_nothing() {
    let place = Place::new();
    place.sparse("in", MIB, &[(0, b"x")]);
    place.sparse("empty", 0, &[]);
    place.sparse("qcow2", MIB, &[(0, b"QFI\xfb")]);
    place.fails("store", &["import", "disk", "FILE:absent"], 1, "absent: No such file");
    place.fails("store", &["import", "disk", "FILE:"], 1, "directory");
    place.fails("store", &["import", "disk", "FILE:empty"], 2, "is empty, but a volume must not be empty");
    place.fails("store", &["import", "disk"], 2, "standard input is empty");
    place.fails("store", &["import", "disk", "FILE:qcow2"], 2, "looks like qcow2: qemu-img convert");
    place.fails("store", &["import", "--size", "4K", "disk", "FILE:in"], 2, "is larger than --size");
    place.fails("store", &["import", "--existing", "disk", "FILE:in"], 3, "there is no volume \"disk\"");
    place.fails("store", &["import", "--set", "object_bytes=5000", "disk", "FILE:in"], 2, "a power of two");
    place.fails("store", &["import", "--set", "is_read_only=true", "disk", "FILE:in"], 2, "cannot be filled");
    place.fails("store", &["export", "disk", "FILE:out"], 3, "there is no volume \"disk\"");
    place.fails("store", &["import-diff", "disk", "FILE:in"], 2, "not a stream of rbd export-diff");
    place.fails("store", &["import-diff", "disk", "FILE:empty"], 2, "ends within its header");
    assert!(!place.is_there("store", "disk"));
    place.ok("store", &["import", "--raw", "disk", "FILE:qcow2"]);
    place.fails("store", &["export", "disk@monday"], 3, "there is no snapshot \"monday\"");
    place.fails("store", &["export-diff", "disk@monday"], 3, "there is no snapshot \"monday\"");
    place.fails("store", &["export", "disk", "/no/such/directory/out"], 1, "/no/such/directory");
    place.fails("store", &["--json", "export", "x"], 3, r#""error":"missing""#);
    assert!(!place.path("out").exists());
    // The command released the volume despite its failure: this open would be refused otherwise,
    // because it does not take a volume over.
    {
        let volumes = place.volumes("store");
        block_on(volumes.open("disk", OpenOptions::default())).unwrap();
    }
    place.fails("store", &["export", "disk", "FILE:out"], 4, "is in use by \"test\"");
    place.ok("store", &["export", "--take-over", "disk", "FILE:out"]);
}

#[test]
fn an_import_that_is_interrupted_leaves_nothing() {
    let place = Place::new();
    let mut child = place.command("store", &["import", "disk"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The data exceed the first piece and a pipe's buffer. The command is reading the second piece,
    // so it has created the volume.
    let mut input = child.stdin.take().unwrap();
    input.write_all(&pattern(6 * MIB as usize)).unwrap();
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    failed(&child.wait_with_output().unwrap(), 130, "interrupted; nothing is left of disk");
    drop(input);
    assert!(!place.is_there("store", "disk"));
    let report = block_on(place.volumes("store").check(false)).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}
