//! The cache's memory besides the data: per object of one bucket, and per bucket of full objects.
//! Each is the resident memory of a separate process, so that no freed memory is reused unnoticed.

use std::process::Command;

use anyhow::Context;
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ReadRequest, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_core::object::ObjectCacheConfig;

use crate::setup::{BLOCK, OBJECT, ample, cache, memory_store, objects};

/// Returns the resident memory of this process, in bytes.
fn resident() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).unwrap_or_default().parse()?;
    Ok(pages * 4096.0)
}

/// The number of objects with one bucket, and of full objects, in each of two steps: the second
/// step shows the memory per object, because the first also includes the memory of the process
/// itself.
const SMALL: u64 = 100_000;
const FULL: u64 = 150;

pub(crate) fn memory(_rounds: u32) -> anyhow::Result<()> {
    let child = |part: &str| -> anyhow::Result<f64> {
        let program = std::env::current_exe().context("where this program is")?;
        let output = Command::new(program).args(["--only", part]).output().context("cannot start a child")?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        text.parse().with_context(|| format!("the child for {part} printed {text:?}"))
    };
    let name = objects(1)[0].name.as_bytes().len() + objects(1)[0].namespace.as_bytes().len();
    for (part, what) in [("memory-dirty", "dirty"), ("memory-clean", "clean")] {
        let each = child(part)?;
        println!(
            "an object of one bucket, {what}: {each:.0} bytes beyond its data, {name} of them its name (bar 700)"
        );
    }
    println!(
        "a bucket of a full object: {:.1} bytes beyond its data, 16 of them its share of the region's header (bar 24 \
         without it)",
        child("memory-full")?
    );
    Ok(())
}

/// Measures objects of one dirty bucket.
pub(crate) fn dirty(_rounds: u32) -> anyhow::Result<()> {
    small(WriteMode::Back)
}

/// Measures objects of one clean bucket.
pub(crate) fn clean(_rounds: u32) -> anyhow::Result<()> {
    small(WriteMode::Through)
}

/// Returns a configuration in which nothing is flushed, because the memory of the store's copy
/// would count as the cache's.
fn roomy(bytes: u64, objects: u32, write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig { huge_pages: false, ..ample(bytes, objects, write) }
}

fn small(write: WriteMode) -> anyhow::Result<()> {
    let ids = objects(2 * SMALL);
    let data = Bytes::from(vec![1u8; BLOCK as usize]);
    let store = memory_store();
    if write == WriteMode::Through {
        for id in &ids {
            block_on(store.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
        }
    }
    let cache = cache(store, roomy(2 * SMALL * BLOCK, SMALL as u32 * 5 / 2, write))?;
    let mut before = 0.0;
    for ids in ids.chunks(SMALL as usize) {
        before = resident()?;
        for id in ids {
            if write == WriteMode::Through {
                block_on(cache.read(ReadRequest::new(id.clone(), 0, BLOCK)))?;
            } else {
                block_on(cache.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
            }
        }
    }
    println!("{}", (resident()? - before) / SMALL as f64 - BLOCK as f64);
    Ok(())
}

/// Measures full objects.
pub(crate) fn full(_rounds: u32) -> anyhow::Result<()> {
    let ids = objects(2 * FULL);
    let data = Bytes::from(vec![1u8; BLOCK as usize]);
    let cache = cache(memory_store(), roomy(2 * FULL * OBJECT, 1000, WriteMode::Back))?;
    let mut before = 0.0;
    for ids in ids.chunks(FULL as usize) {
        before = resident()?;
        for id in ids {
            for at in 0..OBJECT / BLOCK {
                block_on(cache.write(WriteRequest::new(id.clone(), at * BLOCK, data.clone())))?;
            }
        }
    }
    println!("{}", (resident()? - before) / (FULL * OBJECT / BLOCK) as f64 - BLOCK as f64);
    Ok(())
}
