//! Two `cached` processes over one store share the volumes of one prefix. One hands a volume over
//! to the other, which is then stopped under load, for longer than its owner is trusted, while the
//! first one takes the volume over. Requests sent before the stop that arrive after the takeover
//! have no effect.

use cached_tests::ceph::Cluster;
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::nbd::Disk;
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;
/// The value that the new owner writes; no round has this number.
const NEW: u64 = u64::MAX;

/// Returns the configuration of a write-back cache in which the age of dirty data causes no flush.
fn host(name: &str, backend: &str, writer: &str) -> Daemon {
    Daemon::start("cached", |place| {
        format!(
            "[objects]\nwrite = \"back\"\nwriter = \"{writer}\"\nmemory_bytes_max = \"16 MiB\"\n\
             dirty_bytes_max = \"4 MiB\"\nobject_bytes_max = \"64 KiB\"\ndirty_age_ms_max = 86400000\n\
             [objects.backend]\n{backend}\n[volumes]\nowner = \"{name}\"\nprefix = \"{writer}\"\n\
             [nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 2\n"
        )
    })
}

fn try_connect(daemon: &Daemon) -> io::Result<Disk> {
    Disk::connect(&daemon.path("nbd"), "disk")
}

fn connect(daemon: &Daemon) -> Disk {
    try_connect(daemon).unwrap_or_else(|error| panic!("no connection: {error}\n{}", daemon.log()))
}

#[track_caller]
fn volume(daemon: &Daemon, arguments: &[&str]) -> String {
    let all: Vec<&str> = std::iter::once("volume").chain(arguments.iter().copied()).collect();
    let (code, text) = daemon.cachectl(&all);
    assert_eq!(code, 0, "{arguments:?}: {text}\n{}", daemon.log());
    text
}

fn wait_until_detached(daemon: &Daemon) {
    wait_for("the volume is given up", || {
        let shown = daemon.json("/volumes/show?name=disk");
        (shown["connections"] == 0 && shown["owner"] == Value::Null).then_some(())
    });
}

/// Returns bytes filled with a number.
fn filled(number: u64, len_bytes: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(len_bytes / 8)
}

fn fill(disk: &mut Disk, number: u64) -> io::Result<()> {
    disk.write(0, &filled(number, SIZE_BYTES))?;
    disk.flush()
}

/// Returns the number that each block contains.
fn numbers(disk: &mut Disk) -> Vec<u64> {
    let all = disk.read(0, SIZE_BYTES).expect("it is read");
    let number = |block: &[u8]| {
        let first = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
        assert!(block == filled(first, BLOCK_BYTES), "a block of several writes");
        first
    };
    all.chunks(BLOCK_BYTES).map(number).collect()
}

#[track_caller]
fn assert_all(disk: &mut Disk, number: u64) {
    let found = numbers(disk);
    assert!(found.iter().all(|one| *one == number), "expected {number} everywhere: {found:?}");
}

/// Writes the whole disk in rounds, block by block, flushes each round, and records the last
/// flushed one. Ends with an error.
fn load(mut disk: Disk, flushed: &AtomicU64) -> io::Error {
    for round in 3.. {
        let mut write = || {
            for block in 0..SIZE_BYTES / BLOCK_BYTES {
                disk.write((block * BLOCK_BYTES) as u64, &filled(round, BLOCK_BYTES))?;
            }
            disk.flush()
        };
        if let Err(error) = write() {
            return error;
        }
        flushed.store(round, Ordering::SeqCst);
    }
    unreachable!("the rounds do not end")
}

fn moves_and_is_taken_over(backend: &str, writer: &str) {
    let (one, two) = (host("one", backend, writer), host("two", backend, writer));
    volume(&one, &["create", "disk", "1M"]);
    let mut disk = connect(&one);
    fill(&mut disk, 1).expect("it is written");
    // The data are not flushed, because the hand-over flushes them.
    disk.write(0, &filled(2, SIZE_BYTES)).expect("it is written");
    volume(&one, &["hand-over", "disk", "two"]);
    let error = disk.write(0, &filled(9, BLOCK_BYTES)).expect_err("another server has it");
    assert!(error.to_string().contains("error 108"), "{error}");
    try_connect(&one).expect_err("it is refused");
    drop(disk);
    assert_eq!(one.json("/volumes/show?name=disk")["owner"], "two");
    let mut disk = connect(&two);
    assert_all(&mut disk, 2);

    let flushed = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&flushed);
    let load = std::thread::spawn(move || load(disk, &noted));
    wait_for("some rounds", || (flushed.load(Ordering::SeqCst) >= 5).then_some(()));
    two.signal(libc::SIGSTOP);
    volume(&one, &["take-over", "disk", "--yes"]);
    let last = flushed.load(Ordering::SeqCst);
    let mut disk = connect(&one);
    let found = numbers(&mut disk);
    // The blocks contain the last flushed round, or the next one if it was already stored.
    assert!(found.iter().all(|number| (last..=last + 1).contains(number)), "{last}: {found:?}");
    fill(&mut disk, NEW).expect("it is written");
    two.signal(libc::SIGCONT);
    let error = load.join().expect("the load");
    assert_all(&mut disk, NEW);
    drop(disk);
    wait_until_detached(&one);
    let mut disk = connect(&one);
    assert_all(&mut disk, NEW);
    drop(disk);
    // These are the contents of the store.
    let one = one.restart("cached", libc::SIGTERM);
    let mut disk = connect(&one);
    assert_all(&mut disk, NEW);

    // The replaced owner can open the volume again.
    volume(&one, &["hand-over", "disk", "two"]);
    drop(disk);
    let mut disk = wait_for("a connection", || try_connect(&two).ok());
    assert_all(&mut disk, NEW);
    fill(&mut disk, NEW - 1).expect("it is written");
    drop(disk);
    wait_until_detached(&two);
    let mut disk = connect(&one);
    assert_all(&mut disk, NEW - 1);
    drop(disk);
    wait_until_detached(&one);
    let (status, report) = one.post("/volumes/check", &json!({}));
    let problems = report["problems"].as_array().expect("a list");
    assert_eq!(status, 200, "{report}");
    assert!(problems.iter().all(|problem| problem["kind"] == "leftover"), "{report}");
    println!("the load ended with: {error}");
}

#[test]
fn over_a_storage_node() {
    let node = Daemon::start("synapsed", |place| {
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{place}/store\" }}\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n"
        )
    });
    let backend = format!("kind = \"synapse\"\naddress = \"unix:{}\"", node.path("synapse").display());
    moves_and_is_taken_over(&backend, "cache");
    moves_and_is_taken_over(&backend, "callers");
}

#[test]
#[ignore = "long: ceph, beyond the contract"]
fn over_rados() {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(cluster) = Cluster::in_memory("two_hosts", parent) else { return };
    let backend = format!("kind = \"rados\"\npool = \"cached\"\nconf = \"{}\"", cluster.conf().display());
    moves_and_is_taken_over(&backend, "cache");
    moves_and_is_taken_over(&backend, "callers");
}
