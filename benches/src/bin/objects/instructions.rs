//! User instructions of a hit, counted by valgrind: single reads and writes of data in memory.
//!
//! Most loads choose random places of 16 MiB in four objects, all in memory and dirty, and copy from
//! and to the same location. One load writes each block of 256 MiB once; these data are in memory
//! and stored. Each figure is the difference of two runs of this program ([`Callgrind::each`]); the
//! background has nothing to do.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Context, Result, bail};
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, FlushRequest, ReadRequest, Scope, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_benches::callgrind::Callgrind;
use cached_benches::figure::Figure;

use crate::setup::{BlockOnce, OBJECT, Places, ample, cache, fill, memory_store, objects};

/// The size of the objects together.
const BYTES: u64 = 16 << 20;
/// The size of the objects together for the load that writes each block once.
const STORED_BYTES: u64 = 256 << 20;
/// Operations of the shorter run.
const CALLS: u64 = 20_000;
/// The counted operations, each with the number of bytes.
const SHAPES: [(&str, Kind, u64); 6] = [
    ("read of 512 bytes", Kind::Read, 512),
    ("read of 4 KiB", Kind::Read, 4 << 10),
    ("read of 64 KiB", Kind::Read, 64 << 10),
    ("write of 4 KiB", Kind::Write, 4 << 10),
    ("write of 64 KiB", Kind::Write, 64 << 10),
    ("write of 4 KiB of stored data", Kind::WriteStored, 4 << 10),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    WriteStored,
}

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
    let &(_, kind, len) = SHAPES.get(shape.parse::<usize>()?).context("there is no such shape")?;
    let bytes = if kind == Kind::WriteStored { STORED_BYTES } else { BYTES };
    let ids = objects(bytes / OBJECT);
    let cache = cache(memory_store(), ample(bytes, 64, WriteMode::Back))?;
    fill(&cache, &ids)?;
    if kind == Kind::WriteStored {
        block_on(cache.flush(FlushRequest::new(Scope::All)))?;
    }
    let data = Bytes::from(vec![9u8; len as usize]);
    let mut target = vec![0u8; len as usize];
    let (mut places, mut once) = (Places::new(77), BlockOnce::new(bytes / len));
    for _ in 0..calls.parse::<u64>()? {
        let block = if kind == Kind::WriteStored { once.next() } else { places.below(bytes / len) };
        let at = block * len;
        let (id, at) = (ids[(at / OBJECT) as usize].clone(), at % OBJECT);
        if kind == Kind::Read {
            let reply = block_on(cache.read(ReadRequest::new(id, at, len)))?;
            reply.data.copy_to(&mut target);
            black_box(&target);
        } else {
            block_on(cache.write(WriteRequest::new(id, at, data.clone())))?;
        }
    }
    Ok(())
}
