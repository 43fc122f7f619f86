//! User instructions of a hit, counted by valgrind: single reads and writes of data in memory.
//!
//! The load is random over 16 MiB in four objects, all in memory and dirty, copied from and to the
//! same location. Each figure is the difference of two runs of this program ([`Callgrind::each`]);
//! the background has nothing to do.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Context, Result, bail};
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ReadRequest, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_benches::callgrind::Callgrind;
use cached_benches::figure::Figure;

use crate::setup::{OBJECT, Places, ample, cache, fill, memory_store, objects};

/// The size of the objects together.
const BYTES: u64 = 16 << 20;
/// Operations of the shorter run.
const CALLS: u64 = 20_000;
/// The counted operations: name, whether it writes, and the number of bytes.
const SHAPES: [(&str, bool, u64); 5] = [
    ("read of 512 bytes", false, 512),
    ("read of 4 KiB", false, 4 << 10),
    ("read of 64 KiB", false, 64 << 10),
    ("write of 4 KiB", true, 4 << 10),
    ("write of 64 KiB", true, 64 << 10),
];

/// The argument that makes this program the counted one; it precedes the number of an operation and
/// the number of calls.
pub(crate) const COUNTED: &str = "instructions-counted";

/// Prints a line for each operation.
pub(crate) fn instructions(_: u32) -> Result<()> {
    let callgrind = Callgrind::find(Path::new("valgrind"))?;
    for (number, (name, ..)) in SHAPES.iter().enumerate() {
        let arguments = |calls: u64| vec!["--only".into(), format!("{COUNTED},{number},{calls}")];
        let each = callgrind.each(CALLS, arguments)?;
        println!("{}", Figure::new(format!("hit, {name}"), each, "instructions"));
    }
    Ok(())
}

/// Makes the counted calls.
pub(crate) fn counted(words: &[String]) -> Result<()> {
    let [shape, calls] = words else { bail!("a shape and a number of calls are needed") };
    let &(_, is_write, len) = SHAPES.get(shape.parse::<usize>()?).context("there is no such shape")?;
    let ids = objects(BYTES / OBJECT);
    let cache = cache(memory_store(), ample(BYTES, 64, WriteMode::Back))?;
    fill(&cache, &ids)?;
    let data = Bytes::from(vec![9u8; len as usize]);
    let mut target = vec![0u8; len as usize];
    let mut places = Places::new(77);
    for _ in 0..calls.parse::<u64>()? {
        let at = places.below(BYTES / len) * len;
        let (id, at) = (ids[(at / OBJECT) as usize].clone(), at % OBJECT);
        if is_write {
            block_on(cache.write(WriteRequest::new(id, at, data.clone())))?;
        } else {
            let reply = block_on(cache.read(ReadRequest::new(id, at, len)))?;
            reply.data.copy_to(&mut target);
            black_box(&target);
        }
    }
    Ok(())
}
