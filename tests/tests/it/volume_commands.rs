//! `cachectl volume` against a running `cached`: by its admin listener, and on its object cache over synapse.

use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::nbd::Disk;
use serde_json::Value;
use std::fs::{File, read};
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;

/// Starts a write-back object cache over a file store, with a journal, volumes at a unix socket,
/// and synapse.
fn start() -> Daemon {
    Daemon::start("cached", |place| {
        format!(
            "[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\n\
             dirty_bytes_max = \"2 MiB\"\nobject_bytes_max = \"64 KiB\"\n[objects.journal]\ncreate = true\n\
             directory = \"{place}/journal\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"12 MiB\"\ndirect = false\n\
             journaled_bytes_max = \"256 KiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{place}/store\"\n\
             [volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 2\n[synapse]\n\
             listen = [\"unix:{place}/synapse\"]\n"
        )
    })
}

/// Runs `cachectl volume`. An argument with the prefix `FILE:` is a file in the program's
/// directory.
fn volume(daemon: &Daemon, arguments: &[&str]) -> (i32, String) {
    let backend = format!("synapse:unix:{}", daemon.path("synapse").display());
    on(daemon, &backend, arguments)
}

fn on(daemon: &Daemon, backend: &str, arguments: &[&str]) -> (i32, String) {
    let arguments: Vec<String> = arguments
        .iter()
        .map(|argument| match argument.strip_prefix("FILE:") {
            Some(name) => daemon.path(name).display().to_string(),
            None => (*argument).to_owned(),
        })
        .collect();
    let mut all = vec!["--backend", backend, "volume"];
    all.extend(arguments.iter().map(String::as_str));
    daemon.cachectl(&all)
}

#[track_caller]
fn done(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = volume(daemon, arguments);
    assert_eq!(code, 0, "{arguments:?}: {text}");
    text
}

/// Asserts that the command exits with this status and prints one line that contains this text.
#[track_caller]
fn refused(daemon: &Daemon, arguments: &[&str], code: i32, text: &str) {
    let (found, line) = volume(daemon, arguments);
    assert_eq!((found, line.trim_end().lines().count()), (code, 1), "{arguments:?}: {line}");
    assert!(line.contains(text), "{arguments:?}: {line}");
}

fn connect(daemon: &Daemon, export: &str) -> Disk {
    Disk::connect(&daemon.path("nbd"), export).expect("a connection")
}

fn wait_until_detached(daemon: &Daemon, name: &str) {
    wait_for("the volume is given up", || {
        done(daemon, &["list"])
            .lines()
            .find_map(|line| (line.starts_with(name) && line.contains("not in use")).then_some(()))
    });
}

#[test]
fn a_disk_is_imported_used_rolled_back_and_copied_elsewhere() {
    let daemon = start();
    let image = File::create(daemon.path("image")).expect("a file");
    image.set_len(8 * MIB + 512).expect("its size");
    image.write_all_at(b"boot", 0).expect("its begin");
    image.write_all_at(&[7; 100_000], 5 * MIB).expect("its middle");
    let before = read(daemon.path("image")).expect("the image");
    assert!(done(&daemon, &["import", "disk", "FILE:image"]).contains("disk is a volume of 8.0 MiB"));
    refused(&daemon, &["import", "disk", "FILE:image"], 4, "\"disk\" exists already");

    // The client writes these data between two snapshots.
    let mut disk = connect(&daemon, "disk");
    assert_eq!(disk.read(5 * MIB, 4).expect("it is read"), [7; 4]);
    assert!(done(&daemon, &["snapshot", "disk@clean"]).starts_with("disk@clean is created"));
    disk.write(100, b"changed").expect("it is written");
    disk.flush().expect("it is flushed");
    done(&daemon, &["snapshot", "disk@changed"]);
    let changed = done(&daemon, &["diff", "disk@changed", "--from", "clean"]);
    assert_eq!(changed.split_whitespace().collect::<Vec<_>>(), ["0", "65536", "data"]);
    assert!(done(&daemon, &["show", "disk"]).contains("1 connection"));
    assert_eq!(done(&daemon, &["flush", "disk"]).trim_end(), "everything written to disk is stored");
    for command in
        [&["rollback", "disk@clean", "--yes"][..], &["delete", "disk", "--yes"], &["detach", "disk"]]
    {
        refused(&daemon, command, 4, "NBD connection");
    }
    refused(&daemon, &["export", "disk", "FILE:out"], 4, "in use by");
    done(&daemon, &["export", "disk@clean", "FILE:clean"]);
    assert!(
        read(daemon.path("clean")).expect("an image") == before,
        "the snapshot differs from what was imported"
    );
    drop(disk);
    wait_until_detached(&daemon, "disk");

    // The streams create the same volume in another store.
    done(&daemon, &["export-diff", "disk@clean", "FILE:full"]);
    done(&daemon, &["export-diff", "disk@changed", "--from", "clean", "FILE:change"]);
    let directory = daemon.path("other").display().to_string();
    let other = format!("file:{directory}");
    assert_eq!(daemon.cachectl(&["init", &directory]).0, 0);
    for stream in ["FILE:full", "FILE:change"] {
        let (code, text) = on(&daemon, &other, &["import-diff", "copy", stream]);
        assert_eq!(code, 0, "{text}");
    }
    assert_eq!(on(&daemon, &other, &["export", "copy", "FILE:copied"]).0, 0);
    done(&daemon, &["export", "disk", "FILE:exported"]);
    let [copied, exported] = ["copied", "exported"].map(|name| read(daemon.path(name)).expect("an image"));
    assert!(copied == exported && copied[100..107] == *b"changed", "the copy differs");

    refused(&daemon, &["rollback", "disk@clean"], 2, "--yes");
    done(&daemon, &["rollback", "disk@clean", "--yes"]);
    assert_eq!(connect(&daemon, "disk").read(0, 107).expect("it is read"), before[..107]);
    wait_until_detached(&daemon, "disk");
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}

#[test]
fn volumes_are_made_changed_and_deleted() {
    let daemon = start();
    assert_eq!(done(&daemon, &["list"]), "");
    done(&daemon, &["create", "base", "16M", "write=through"]);
    refused(&daemon, &["create", "base", "16M"], 4, "exists already");
    refused(&daemon, &["create", "other", "16M", "object_bytes=5000"], 2, "power of two");
    refused(&daemon, &["show", "none"], 3, "there is no volume \"none\"");
    done(&daemon, &["create", "data", "1M"]);
    done(&daemon, &["snapshot", "base@gold", "data"]);
    done(&daemon, &["clone", "base@gold", "vm1"]);
    done(&daemon, &["clone", "base", "vm2"]);
    let listed = done(&daemon, &["list"]);
    assert!(listed.contains("vm1      16 MiB, not in use, clone of base@gold\n"), "{listed}");
    assert_eq!(listed.lines().count(), 4, "{listed}");
    done(&daemon, &["flatten", "vm1"]);
    done(&daemon, &["resize", "vm1", "32M"]);
    refused(&daemon, &["resize", "vm1", "8M"], 2, "the last 24 MiB would be lost");
    done(&daemon, &["resize", "vm1", "8M", "--yes"]);
    done(&daemon, &["set", "vm1", "is_read_only=true"]);
    let shown: Value =
        serde_json::from_str(&daemon.cachectl(&["--json", "volume", "show", "vm1"]).1).expect("JSON");
    assert_eq!(shown["size_bytes"], 8 * MIB);
    assert_eq!((&shown["settings"]["is_read_only"], &shown["origin"]), (&Value::Bool(true), &Value::Null));
    assert!(connect(&daemon, "vm1").write(0, &[1]).is_err(), "it is read-only");
    wait_until_detached(&daemon, "vm1");
    done(&daemon, &["detach", "vm1"]);
    refused(&daemon, &["take-over", "vm1"], 2, "it has no owner");
    done(&daemon, &["take-over", "vm1", "--yes"]);
    done(&daemon, &["delete-snapshot", "data@gold", "--yes"]);
    refused(&daemon, &["delete-snapshot", "data@gold", "--yes"], 3, "there is no snapshot \"gold\"");
    for name in ["base", "data", "vm1", "vm2"] {
        done(&daemon, &["delete", name, "--yes"]);
    }
    assert!(done(&daemon, &["check"]).contains("0 volumes, 0 objects: in order"));
    refused(&daemon, &["job", "1000"], 3, "there is no job 1000");
}

/// Data that an owner wrote before it released a volume are stored, but may still be queued when
/// another process examines the volume.
#[test]
fn a_check_and_a_listing_find_what_is_still_queued() {
    let daemon = start();
    std::fs::write(daemon.path("image"), vec![7; MIB as usize]).expect("a file");
    done(&daemon, &["import", "disk", "FILE:image"]);
    let backend = format!("synapse:unix:{}", daemon.path("synapse").display());
    let objects = |command: &str| {
        let (code, text) =
            daemon.cachectl(&["--backend", &backend, "--namespace", "volumes.0000001", command]);
        assert_eq!(code, 0, "{text}");
        let names = text.lines().filter_map(|line| line.split_whitespace().last());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let in_order = |when: &str| {
        let checked = done(&daemon, &["check"]);
        assert!(checked.contains("1 volume") && checked.contains("in order"), "{when}: {checked}");
    };
    let imported = objects("ls");
    // The other store has at least 16 data objects, the head, and a page of the map.
    assert!(imported.len() >= 18, "{imported:?}");
    in_order("after the import");
    let mut disk = connect(&daemon, "disk");
    disk.write(0, b"changed").expect("it is written");
    disk.flush().expect("it is flushed");
    assert_eq!(objects("ls"), imported, "while a client has it");
    drop(disk);
    wait_until_detached(&daemon, "disk");
    in_order("after a client had it");
    done(&daemon, &["export", "disk", "FILE:exported"]);
    assert_eq!(objects("ls"), imported, "after the export");
    in_order("after the export");
    objects("flush");
    assert_eq!(objects("ls"), imported, "when all of it is stored");
}

#[test]
fn a_damaged_volume_is_named_and_deleted_and_the_others_are_listed() {
    let daemon = start();
    done(&daemon, &["create", "broken", "1M"]);
    done(&daemon, &["create", "disk", "1M"]);
    std::fs::write(daemon.path("nonsense"), "nonsense").expect("a file");
    let backend = format!("synapse:unix:{}", daemon.path("synapse").display());
    let nonsense = daemon.path("nonsense").display().to_string();
    let put = ["--backend", &backend, "--namespace", "volumes.0000001", "put", "head", &nonsense];
    let (code, text) = daemon.cachectl(&put);
    assert_eq!(code, 0, "{text}");
    let (code, listed) = volume(&daemon, &["list"]);
    assert_eq!(code, 6, "{listed}");
    assert!(listed.lines().any(|line| line.starts_with("disk ") && line.contains("not in use")), "{listed}");
    assert!(listed.contains("broken  damaged: head volumes.0000001/head of a volume: "), "{listed}");
    let all = daemon.json("/volumes");
    assert_eq!(all["volumes"][0]["name"], "disk", "{all}");
    assert_eq!(all["damaged"][0]["name"], "broken", "{all}");
    assert_eq!(connect(&daemon, "disk").read(0, 4).expect("it is read"), [0; 4]);
    // A damaged volume is removed only by a command that says so.
    refused(&daemon, &["delete", "broken", "--yes"], 1, "set `damaged` to delete the volume anyway");
    refused(&daemon, &["delete", "broken", "--damaged"], 2, "broken is unchanged");
    assert!(done(&daemon, &["delete", "broken", "--damaged", "--yes"]).contains("broken is deleted"));
    wait_until_detached(&daemon, "disk");
    let checked = done(&daemon, &["check"]);
    assert!(checked.contains("1 volume") && checked.contains("in order"), "{checked}");
}
