//! A client of a volume over NBD, and one of objects over HTTP, each of which goes to the other host
//! when it loses the one that serves it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cached_tests::nbd::Disk;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::hosts::VOLUME;
use super::load::{BLOCK_BYTES, Shared, add, number_in};
use crate::object_http::{Answer, Client};

const BLOCKS: usize = 64;
const OBJECTS: usize = 4;
/// The pause before the other host is tried.
const PAUSE: Duration = Duration::from_millis(20);

/// A block of the volume, which contains ascending numbers.
#[derive(Clone, Copy, Default)]
struct Block {
    /// The last number whose write was requested.
    requested: u64,
    /// The last one that is acknowledged on this connection.
    acknowledged: u64,
    /// The last one that a flush has covered.
    flushed: u64,
}

/// Writes, flushes and reads blocks of the volume. Checks that a read block has at least the last
/// flushed number, and on the same connection the last acknowledged one.
pub(super) fn use_volume(shared: &Shared, sockets: &[PathBuf; 2], seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut blocks = [Block::default(); BLOCKS];
    for host in [0, 1].into_iter().cycle() {
        if shared.is_over() {
            return;
        }
        let connected = Disk::connect(&sockets[host], VOLUME);
        // An error means that the connection is lost or the volume refuses a request: the other
        // host is tried.
        let _: io::Result<()> = connected.and_then(|disk| until_lost(shared, disk, &mut blocks, &mut random));
        std::thread::sleep(PAUSE);
    }
}

fn until_lost(
    shared: &Shared,
    mut disk: Disk,
    blocks: &mut [Block; BLOCKS],
    random: &mut SmallRng,
) -> io::Result<()> {
    for block in &mut *blocks {
        block.acknowledged = block.flushed;
    }
    while !shared.is_over() {
        let number = random.random_range(0..BLOCKS);
        let (offset, block) = ((number * BLOCK_BYTES) as u64, &mut blocks[number]);
        match random.random_range(0..10) {
            0 => {
                disk.flush()?;
                for block in &mut *blocks {
                    block.flushed = block.acknowledged;
                }
                add(&shared.counts.volume_flushed);
            }
            1..5 => {
                block.requested += 1;
                disk.write(offset, &block.requested.to_le_bytes().repeat(BLOCK_BYTES / 8))?;
                block.acknowledged = block.requested;
            }
            _ => {
                let data = disk.read(offset, BLOCK_BYTES)?;
                let Block { requested, acknowledged, flushed } = *block;
                match number_in(&data) {
                    None => shared.fault(format!("block {number} of the volume is torn")),
                    Some(value) if !(acknowledged..=requested).contains(&value) => shared.fault(format!(
                        "block {number} of the volume: {value} is read after {acknowledged} was acknowledged, \
                         {flushed} flushed and {requested} requested"
                    )),
                    Some(_) => add(&shared.counts.volume_reads),
                }
            }
        }
        std::thread::sleep(Duration::from_millis(random.random_range(0..4)));
    }
    Ok(())
}

/// An object that contains ascending numbers, each requested to be stored.
#[derive(Default)]
struct Object {
    requested: u64,
    stored: u64,
    /// The number that was found with each version: the content of a version never changes.
    numbers: HashMap<String, u64>,
}

/// Replaces and reads objects over HTTP. Checks that no read is older than what was acknowledged as
/// stored, and that no version has two contents. After a takeover the same content may have another
/// version.
pub(super) fn use_http(shared: &Shared, hosts: &[String; 2], seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut objects: [Object; OBJECTS] = Default::default();
    for host in [0, 1].into_iter().cycle() {
        if shared.is_over() {
            return;
        }
        // A host that does not lead refuses the connection.
        if let Ok(mut client) = Client::open(&hosts[host]) {
            while !shared.is_over() && step(shared, &mut client, &mut objects, &mut random) {
                std::thread::sleep(Duration::from_millis(random.random_range(0..8)));
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Makes one request. Returns whether the host serves.
fn step(
    shared: &Shared,
    client: &mut Client,
    objects: &mut [Object; OBJECTS],
    random: &mut SmallRng,
) -> bool {
    let number = random.random_range(0..OBJECTS);
    let (path, object) = (format!("/http/object-{number}"), &mut objects[number]);
    let writes = random.random_range(0..2) == 0;
    let answer = if writes {
        object.requested += 1;
        let body = object.requested.to_le_bytes().repeat(BLOCK_BYTES / 8);
        client.ask(&format!("PUT {path}"), "Durability: stored\r\n", &body)
    } else {
        client.ask(&format!("GET {path}"), "", b"")
    };
    let Some(answer) = answer else { return false };
    match answer.status {
        201 | 204 if answer.header("durability") == Some("stored") => {
            object.stored = object.requested;
            object.numbers.insert(answer.etag(), object.stored);
            add(&shared.counts.http_stored);
        }
        200 => check(shared, &path, object, &answer),
        404 if object.stored == 0 => {}
        // The host no longer leads, the change may not have been made, or the store is full.
        503 | 504 | 507 => {
            add(&shared.counts.http_refused);
            return false;
        }
        _ => shared.fault(format!("{path}: {answer:?}")),
    }
    true
}

fn check(shared: &Shared, path: &str, object: &mut Object, answer: &Answer) {
    let Some(value) = number_in(&answer.body) else {
        return shared.fault(format!("{path}: torn, {} bytes", answer.body.len()));
    };
    let (stored, requested) = (object.stored, object.requested);
    if !(stored..=requested).contains(&value) {
        shared.fault(format!("{path}: {value} is read after {stored} was stored and {requested} requested"));
    }
    let before = *object.numbers.entry(answer.etag()).or_insert(value);
    if before != value {
        shared.fault(format!("{path}: {value} is read as the version {}, which was {before}", answer.etag()));
    }
    add(&shared.counts.http_reads);
}
