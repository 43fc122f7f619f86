//! The loads: artificial ones, and replayed block traces.

use std::path::Path;

use anyhow::{Context, bail};
use blocker::{Name, Namespace, ObjectId};
use cached_benches::files::read_plain_or_zst;

/// The bytes of an object.
pub(crate) const OBJECT_BYTES: u64 = 4 << 20;
const KIB: u64 = 1024;
/// The size of the volume that the artificial loads read.
const VOLUME_BYTES: u64 = 1 << 30;

/// Reads of a volume: the start and the length of each, in bytes.
pub(crate) struct Load {
    pub(crate) name: String,
    pub(crate) requests: Vec<(u64, u64)>,
    /// The end of the volume.
    pub(crate) end_bytes: u64,
}

/// Returns the name of an object of the volume.
pub(crate) fn object(number: u64) -> ObjectId {
    let namespace = Namespace::new("bench").expect("a name");
    ObjectId::new(namespace, Name::new(format!("volume.{number:016x}")).expect("a name"))
}

fn load(name: &str, requests: Vec<(u64, u64)>) -> Load {
    Load { name: name.into(), requests, end_bytes: VOLUME_BYTES }
}

/// A cheap, sufficiently random source of positions.
struct Places(u64);

impl Places {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(count)) >> 64) as u64
    }
}

/// Returns loads whose next requests are predictable by construction.
pub(crate) fn made_up() -> Vec<Load> {
    let mut places = Places(0x9e37_79b9_7f4a_7c15);
    let in_order = |bytes: u64, count: u64| (0..count).map(|nth| (nth * bytes, bytes)).collect();
    let strided =
        |step: u64, bytes: u64| (0..VOLUME_BYTES / step).map(|nth| (nth * step, bytes)).collect::<Vec<_>>();
    let blocks = VOLUME_BYTES / (4 * KIB);
    let mut random = |count: u64| -> Vec<(u64, u64)> {
        (0..count).map(|_| (places.below(blocks) * 4 * KIB, 4 * KIB)).collect()
    };
    let random_4k = random(200_000);
    // Sequential readers alternate with random reads: one follows each of their reads.
    let noise = random(120_000);
    let beside_random = |readers: u64| -> Vec<_> {
        let interleaved = (0..120_000u64).flat_map(|nth| {
            let reader = nth % readers;
            let at = reader * (blocks / readers * 4 * KIB) + nth / readers * 4 * KIB;
            [(at, 4 * KIB), noise[nth as usize]]
        });
        interleaved.collect()
    };
    // Each run is short: three consecutive buckets at a random position.
    let starts = random(50_000);
    let last = VOLUME_BYTES - 12 * KIB;
    let runs = starts.iter().flat_map(|(at, len)| (0..3).map(move |nth| (at.min(&last) + nth * len, *len)));
    let runs: Vec<_> = runs.collect();
    vec![
        load("in order, 4 KiB", in_order(4 * KIB, 100_000)),
        load("in order, 512 bytes", in_order(512, 400_000)),
        load("in order, 64 KiB", in_order(64 * KIB, 16_000)),
        load("eight in order beside random", beside_random(8)),
        load("24 in order beside random", beside_random(24)),
        load("steps of 64 KiB, 4 KiB each", strided(64 * KIB, 4 * KIB)),
        load("steps of 16 KiB, 12 KiB each", strided(16 * KIB, 12 * KIB)),
        load("random, 4 KiB", random_4k),
        load("three in order, here and there", runs),
    ]
}

/// Reads the traces in a directory.
///
/// # Errors
/// Returns the file that cannot be read or is not a trace.
pub(crate) fn traces(directory: &Path, block_bytes: u64) -> anyhow::Result<Vec<Load>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("opening {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    let mut loads = Vec::new();
    for path in paths {
        let text = path.to_string_lossy();
        if text.ends_with(".lis") || text.ends_with(".lis.zst") {
            let (name, bytes) = read_plain_or_zst(&path)?;
            let mut trace = decode(&bytes, block_bytes).with_context(|| format!("in {}", path.display()))?;
            trace.name = format!("trace {}", name.trim_end_matches(".lis"));
            loads.push(trace);
        }
    }
    Ok(loads)
}

/// Decodes lines of `start count ignored request`, in blocks.
fn decode(bytes: &[u8], block_bytes: u64) -> anyhow::Result<Load> {
    let mut requests = Vec::new();
    for (number, line) in std::str::from_utf8(bytes)?.lines().enumerate() {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(start)), Some(Ok(count))) = (words.next(), words.next()) else {
            bail!("line {}: `{line}` does not begin with two numbers", number + 1);
        };
        let place = start.checked_mul(block_bytes).zip(count.checked_mul(block_bytes));
        let (start, len) = place.context("a block number that is too large")?;
        start.checked_add(len).context("a block number that is too large")?;
        requests.push((start, len));
    }
    let end_bytes = requests.iter().map(|(start, len)| start + len).max().unwrap_or(0);
    Ok(Load { name: String::new(), requests, end_bytes: end_bytes.next_multiple_of(OBJECT_BYTES) })
}
