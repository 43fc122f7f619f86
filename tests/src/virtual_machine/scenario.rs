//! One run: Debian boots from a clone, servers and guests are killed under load, and the surviving
//! data are checked.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Image, System, VirtualMachine, content};
use crate::daemon::{Daemon, wait_for};

/// The number of files that the guest syncs between two events.
const FILES: u32 = 8;

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Kills of the server while the guest runs.
    pub kills: u32,
    /// The numbers of the last file reported as synced, and of the last one before the snapshot.
    pub synced: u32,
    /// See `synced`.
    pub synced_before_snapshot: u32,
    /// The number of passes in which fio has verified its data.
    pub verified: u32,
    /// The duration.
    pub time: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, synced, synced_before_snapshot, verified, time } = self;
        write!(
            out,
            "{kills} kills of the server; {synced} files were synced, {synced_before_snapshot} of them before the snapshot; \
             {verified} passes of fio were verified; {time:.0?}"
        )
    }
}

/// Returns the configuration of README, with little memory, so that the data do not stay in the
/// journal alone. Every acknowledged write survives a kill, which is necessary if the guest
/// continues afterwards.
fn configuration(place: &str) -> String {
    format!(
        "[objects]\nwrite = \"back\"\nwriter = \"cache\"\ndurability = \"journaled\"\nmemory_bytes_max = \"64 MiB\"\n\
         dirty_bytes_max = \"16 MiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{place}/store\"\n\
         [objects.journal]\ncreate = true\ndirectory = \"{place}/journal\"\nsegment_bytes = \"4 MiB\"\nlimit_bytes = \"64 MiB\"\n\
         [synapse]\nlisten = [\"unix:{place}/synapse\"]\n[volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\n"
    )
}

/// Boots Debian from a clone, kills the server this many times while the guest runs, and then kills
/// both. Compares the surviving data with the acknowledged data, and with the snapshot taken in
/// between. Finally boots Debian again from the surviving data.
///
/// # Panics
/// Panics if data are missing or wrong, or a step takes too long.
pub fn run(system: &System, kills: u32) -> Report {
    let begin = Instant::now();
    let step = |what: &str| println!("{:>6.1} s: {what}", begin.elapsed().as_secs_f64());
    let mut server = Daemon::start("cached", configuration);
    let image_of = |server: &Daemon, disk: &str| {
        Image::of(&server.path("nbd"), disk, server.path("images").with_extension(disk))
    };
    volume(&server, &["import", "base", &system.disk.display().to_string()]);
    volume(&server, &["snapshot", "base@gold"]);
    volume(&server, &["clone", "base@gold", "vm1"]);
    step("the clone is made");

    let mut guest = VirtualMachine::start(system, &server.path("nbd"), "vm1", &server.path("console"));
    assert_eq!(guest.wait_for("WORKING "), "0");
    step("Debian has booted");
    guest.verify_more(1);
    let synced_before_snapshot = guest.sync_more(FILES);
    volume(&server, &["snapshot", "vm1@middle"]);
    volume(&server, &["clone", "vm1@middle", "look"]);
    let middle = image_of(&server, "look");
    step("a snapshot was made and copied while it runs");
    for kill in 0..kills {
        // From here on every object belongs to the snapshot, so the guest's writes go to new
        // objects.
        volume(&server, &["snapshot", &format!("vm1@before-kill-{kill}")]);
        guest.sync_more(1);
        // By now fio has written data that were not flushed.
        guest.wait_for("PAUSED");
        // The guest's requests wait until the server is reachable again.
        server = server.restart("cached", libc::SIGKILL);
    }
    step("the server was killed and started again");
    guest.sync_more(FILES);
    // The count includes the pass during the last kill, and one more.
    let verified = guest.verify_more(2);
    step("the guest has gone on");
    let synced = guest.kill();
    // From here on an unflushed write may be lost, and the guest does not continue after a kill of
    // the server.
    server.configure(|text| text.replacen("durability = \"journaled\"\n", "", 1));
    server = server.restart("cached", libc::SIGKILL);
    let check = |server: &Daemon, synced| {
        let disk = image_of(server, "vm1");
        disk.check_after_replay();
        let found = server.path(&format!("found-{synced}"));
        disk.extract("/work/files", &found);
        assert_files(&found.join("files"), synced);
    };
    check(&server, synced);
    step("both were killed, and the disk has what was synced");

    let mut guest = VirtualMachine::start(system, &server.path("nbd"), "vm1", &server.path("console"));
    let last: u32 = guest.wait_for("WORKING ").parse().expect("the number of the last file");
    assert!(last >= synced, "{last}, and {synced} was synced");
    step("Debian has booted from what is left");
    guest.sync_more(FILES);
    server.signal(libc::SIGKILL);
    let synced = guest.kill();
    server = server.restart("cached", libc::SIGKILL);
    check(&server, synced);
    step("both were killed again, and the disk has what was synced");

    wait_for("the volume is given up", || {
        let shown = server.json("/volumes/show?name=vm1");
        (shown["connections"] == 0 && shown["attached"] == false).then_some(())
    });
    volume(&server, &["rollback", "vm1@middle", "--yes"]);
    let back = image_of(&server, "vm1");
    assert!(back.is_same(middle.path()), "after the rollback the disk is not what it was at the snapshot");
    back.check_after_replay();
    let found = server.path("found-back");
    back.extract("/work/files", &found);
    assert_files(&found.join("files"), synced_before_snapshot);
    assert!(!found.join(format!("files/file{synced}")).exists(), "the snapshot has what came later");
    assert!(image_of(&server, "base").is_same(&system.disk), "the origin has changed");
    let (status, checked) = server.post("/volumes/check", &json!({}));
    let problems = checked["problems"].as_array().filter(|_| status == 200).expect("a report");
    assert!(problems.iter().all(|problem| problem["kind"] == "leftover"), "{checked}");
    step("the rollback has brought the snapshot back");
    Report { kills, synced, synced_before_snapshot, verified, time: begin.elapsed() }
}

/// Runs a `cachectl volume` command, which must succeed.
#[track_caller]
fn volume(server: &Daemon, arguments: &[&str]) {
    let backend = format!("synapse:unix:{}", server.path("synapse").display());
    let (code, text) = server.cachectl(&[&["--backend", &backend, "volume"], arguments].concat());
    assert_eq!(code, 0, "{arguments:?}: {text}\n{}", server.log());
}

/// Checks the files up to the last one that was reported as synced.
#[track_caller]
fn assert_files(folder: &Path, synced: u32) {
    for file in 0..=synced {
        let found = std::fs::read(folder.join(format!("file{file}"))).unwrap_or_default();
        assert!(found == content(file), "file {file} of {synced} has {} bytes", found.len());
    }
    let last = std::fs::read_to_string(folder.join("last")).expect("the number of the last file");
    let last: u32 = last.parse().unwrap_or_else(|error| panic!("{last:?}: {error}"));
    assert!(last >= synced, "{last}, and {synced} was synced");
}
