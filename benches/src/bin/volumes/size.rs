//! Snapshots and clones of a large volume and a small one.

use std::path::Path;

use anyhow::{Context, Result};
use cached_benches::statistics::Spread;

use crate::cached::{Cached, Configuration};
use crate::writer::Writer;
use crate::{Arguments, Bar, fio, print};

const OBJECT_BYTES: u64 = 4 << 20;
/// The maximum number of a volume's objects with data. These objects are spread over all pages of
/// the map.
const OBJECTS_MAX: u64 = 1024;
const SMALL_BYTES: u64 = 1 << 30;
const LARGE_BYTES: u64 = 1 << 40;

/// The median duration of a snapshot and of a clone in seconds, and the traffic to the store during
/// that time.
struct Cost {
    snapshot_s: f64,
    clone_s: f64,
    carried_bytes: f64,
    copies: f64,
}

pub(crate) fn run(arguments: &Arguments, directory: &Path) -> Result<()> {
    let wanted = Configuration {
        memory_mib: 256,
        dirty_mib: 64,
        backend: format!(
            "{{ kind = \"file\", create = true, path = \"{}\" }}",
            directory.join("size").display()
        ),
        has_journal: false,
        more: "",
    };
    let cached = Cached::start(arguments, directory, &wanted)?;
    let small = measure(&cached, "small", SMALL_BYTES)?;
    let large = measure(&cached, "large", LARGE_BYTES)?;
    for (name, cost) in [("1 GiB", &small), ("1 TiB", &large)] {
        print(format!("size: snapshot of {name}"), cost.snapshot_s * 1e3, "ms", None);
        print(format!("size: clone of {name}"), cost.clone_s * 1e3, "ms", None);
        print(format!("size: bytes to and from the store for both, {name}"), cost.carried_bytes, "B", None);
        print(format!("size: copies of objects for both, {name}"), cost.copies, "", Some(Bar::AtMost(0.0)));
    }
    let ratio = |of: fn(&Cost) -> f64| of(&large) / of(&small);
    print("size: snapshot of 1 TiB, of 1 GiB's", ratio(|cost| cost.snapshot_s), "x", Some(Bar::AtMost(2.0)));
    print("size: clone of 1 TiB, of 1 GiB's", ratio(|cost| cost.clone_s), "x", Some(Bar::AtMost(2.0)));
    cached.server.end()
}

fn measure(cached: &Cached, name: &str, size_bytes: u64) -> Result<Cost> {
    const TIMES: usize = 21;
    cached.create(name, size_bytes)?;
    let uri = cached.server.uri(name);
    let objects = (size_bytes / OBJECT_BYTES).min(OBJECTS_MAX);
    let skip = (size_bytes / objects - 4096) >> 10;
    let words = [format!("--rw=write:{skip}k"), "--bs=4k".into(), "--iodepth=32".into()];
    let more = [format!("--io_size={}", objects * 4096), format!("--size={size_bytes}")];
    fio::run(&uri, &[words.as_slice(), &more].concat())?;
    let mut writer = Writer::connect(&cached.server.socket, name)?;
    // This stores the data of the writes above before the measurement begins.
    writer.flush()?;
    let (mut snapshots, mut clones, mut carried, mut copied) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for time in 0..TIMES {
        let before = (carried_bytes(cached)?, copies(cached)?);
        let body = format!("{{\"volumes\": [\"{name}\"], \"snapshot\": \"s{time}\"}}");
        snapshots.push(cached.post("/volumes/snapshot", &body)?.as_secs_f64());
        let body =
            format!("{{\"source\": \"{name}\", \"snapshot\": \"s{time}\", \"name\": \"{name}-{time}\"}}");
        clones.push(cached.post("/volumes/clone", &body)?.as_secs_f64());
        carried.push(carried_bytes(cached)? - before.0);
        copied.push(copies(cached)? - before.1);
    }
    let median = |values: Vec<f64>| Some(Spread::of(values)?.median);
    Ok(Cost {
        snapshot_s: median(snapshots).context("snapshots")?,
        clone_s: median(clones).context("clones")?,
        carried_bytes: median(carried).context("bytes")?,
        copies: copied.iter().sum(),
    })
}

fn carried_bytes(cached: &Cached) -> Result<f64> {
    cached.sum("cached_objects_namespace_store_bytes_total")
}

fn copies(cached: &Cached) -> Result<f64> {
    cached.sum("cached_store_request_duration_seconds_count{backend=\"file\",operation=\"copy\"}")
}
