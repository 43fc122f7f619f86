//! Random sequences of operations, compared with a plain map of vectors.

use std::collections::BTreeMap;

use super::context::{Check, Cx, ensure};
use crate::change::*;
use crate::error::Error;
use crate::ext::BlockerExt;
use crate::order::Durability;
use crate::request::*;

const OBJECTS: u64 = 5;
const SIZE_MAX: u64 = 20_000;

pub(super) fn any_sequence_matches_a_plain_map(cx: &Cx<'_>) -> Check {
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for step in 0..400 * cx.options.effort {
        let key = cx.below(OBJECTS);
        let object = cx.object(format!("object-{key}"));
        let (offset, len) = (cx.below(SIZE_MAX / 2), cx.below(SIZE_MAX / 2));
        // Half of the ranges are aligned, like those of disks.
        let align = if cx.below(2) == 0 { 4096 } else { 1 };
        let (offset, len) = (offset / align * align, len / align * align);
        let (from, to) = (offset as usize, (offset + len) as usize);
        let durability = if cx.below(8) == 0 { Durability::Stored } else { Durability::Cached };
        let at = |what: &str| format!("{what} at step {step}");
        match cx.below(if cx.caps.runs_max > 2 { 10 } else { 9 }) {
            0..=2 => {
                let data = cx.bytes(len as usize);
                let request = WriteRequest::new(object, offset, data.clone()).durability(durability);
                cx.ok(&at("write"), |b| b.write(request.clone()))?;
                let content = model.entry(key).or_default();
                if len > 0 {
                    content.resize(content.len().max(to), 0);
                    content[from..to].copy_from_slice(&data);
                }
            }
            3 => {
                let request = WriteZeroesRequest::new(object, offset, len).durability(durability);
                cx.ok(&at("write_zeroes"), |b| b.write_zeroes(request.clone()))?;
                let content = model.entry(key).or_default();
                if len > 0 {
                    content.resize(content.len().max(to), 0);
                    content[from..to].fill(0);
                }
            }
            4 => {
                let request = DiscardRequest::new(object, offset, len).durability(durability);
                let done = cx.wait(&at("discard"), |b| b.discard(request.clone()))?;
                expect_as(&at("discard"), done.map(drop), model.contains_key(&key))?;
                if let Some(content) = model.get_mut(&key) {
                    let size = content.len();
                    content[from.min(size)..to.min(size)].fill(0);
                }
            }
            5 => {
                let request = TruncateRequest::new(object, offset).durability(durability);
                let done = cx.wait(&at("truncate"), |b| b.truncate(request.clone()))?;
                expect_as(&at("truncate"), done.map(drop), model.contains_key(&key))?;
                if let Some(content) = model.get_mut(&key) {
                    content.resize(from, 0);
                }
            }
            6 => {
                let data = cx.bytes(len as usize);
                let request = WriteFullRequest::new(object, data.clone()).durability(durability);
                cx.ok(&at("write_full"), |b| b.write_full(request.clone()))?;
                model.insert(key, data.to_vec());
            }
            7 => {
                let request = DeleteRequest::new(object).durability(durability);
                let done = cx.wait(&at("delete"), |b| b.delete(request.clone()))?;
                expect_as(&at("delete"), done.map(drop), model.remove(&key).is_some())?;
            }
            9 => {
                let content = model.entry(key).or_default();
                let (mut runs, mut end) = (Vec::new(), offset);
                for _ in 0..=cx.below(2) {
                    let (at, len) = (end + cx.below(5_000) / align * align, 1 + cx.below(2_000));
                    end = at + len.next_multiple_of(align);
                    let (from, to) = (at as usize, end as usize);
                    content.resize(content.len().max(to), 0);
                    if cx.below(3) == 0 {
                        runs.push(Run::zeroes(at, end - at));
                        content[from..to].fill(0);
                    } else {
                        let data = cx.bytes(to - from);
                        content[from..to].copy_from_slice(&data);
                        runs.push(Run::data(at, data));
                    }
                }
                let request = WriteRunsRequest::new(object, runs).durability(durability);
                cx.ok(&at("write_runs"), |b| b.write_runs(request.clone()))?;
            }
            _ => {
                let source = cx.below(OBJECTS);
                let request = CopyRequest::new(cx.object(format!("object-{source}")), object);
                let done = cx.wait(&at("copy"), |b| b.copy(request.clone()))?;
                expect_as(&at("copy"), done.map(drop), model.contains_key(&source))?;
                if let Some(content) = model.get(&source).cloned() {
                    model.insert(key, content);
                }
            }
        }
        if cx.below(10) == 0 {
            cx.flush(Scope::Namespace(cx.namespace()))?;
        }
        check(cx, &model, key, offset, len)?;
    }
    for key in 0..OBJECTS {
        check(cx, &model, key, 0, SIZE_MAX)?;
    }
    let names: Vec<Vec<u8>> = model.keys().map(|key| format!("object-{key}").into_bytes()).collect();
    ensure!(cx.names(&ListRequest::new(cx.namespace()))? == names, "the listing is not the map's");
    Ok(())
}

fn expect_as(what: &str, done: Result<(), Error>, is_there: bool) -> Check {
    let wanted = if is_there { Ok(()) } else { Err(Error::Missing) };
    ensure!(done == wanted, "{what} gave {done:?}, expected {wanted:?}");
    Ok(())
}

/// Compares a range and the size of one object with the map.
fn check(cx: &Cx<'_>, model: &BTreeMap<u64, Vec<u8>>, key: u64, offset: u64, len: u64) -> Check {
    let object = cx.object(format!("object-{key}"));
    let Some(content) = model.get(&key) else { return cx.is_missing(&object) };
    let size = content.len();
    let reply = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), offset, len)))?;
    ensure!(reply.size_bytes == size as u64, "object {key} has {} bytes, expected {size}", reply.size_bytes);
    let wanted = &content[(offset as usize).min(size)..((offset + len) as usize).min(size)];
    super::context::same_bytes(&reply.data.to_vec(), wanted)
}
