//! Random sequences of operations, compared with a plain map of vectors.

use std::collections::BTreeMap;

use super::context::{Check, Cx, ensure};
use crate::{
    ChangeRequest, CopyRequest, DeleteRequest, DiscardRequest, Durability, Error, ListRequest, ReadRequest,
    Run, Scope, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

const OBJECTS: u64 = 5;
const SIZE_MAX: u64 = 20_000;

pub(super) fn any_sequence_matches_a_plain_map(cx: &Cx<'_>) -> Check {
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for step in 0..400 * cx.options.effort {
        let key = cx.below(OBJECTS);
        let object = cx.object(format!("object-{key}"));
        let (offset, len) = (cx.below(SIZE_MAX / 2), cx.below(SIZE_MAX / 2));
        // Half of the ranges are aligned, like the requests of disks.
        let align = if cx.below(2) == 0 { 4096 } else { 1 };
        let (offset, len) = (offset / align * align, len / align * align);
        let (from, to) = (offset as usize, (offset + len) as usize);
        let durability = if cx.below(8) == 0 { Durability::Stored } else { Durability::Cached };
        // The test applies each operation to the map first. `is_done` is true if the store must
        // execute the operation as well, and false if the store must report a missing object.
        let (request, is_done): (ChangeRequest, bool) =
            match cx.below(if cx.caps.runs_max > 2 { 10 } else { 9 }) {
                0..=2 => {
                    let data = cx.bytes(len as usize);
                    put(model.entry(key).or_default(), from, &data);
                    (WriteRequest::new(object, offset, data).into(), true)
                }
                3 => {
                    put(model.entry(key).or_default(), from, &vec![0; to - from]);
                    (WriteZeroesRequest::new(object, offset, len).into(), true)
                }
                4 => {
                    let content = model.get_mut(&key).map(|content| {
                        let size = content.len();
                        content[from.min(size)..to.min(size)].fill(0);
                    });
                    (DiscardRequest::new(object, offset, len).into(), content.is_some())
                }
                5 => {
                    let content = model.get_mut(&key).map(|content| content.resize(from, 0));
                    (TruncateRequest::new(object, offset).into(), content.is_some())
                }
                6 => {
                    let data = cx.bytes(len as usize);
                    model.insert(key, data.to_vec());
                    (WriteFullRequest::new(object, data).into(), true)
                }
                7 => (DeleteRequest::new(object).into(), model.remove(&key).is_some()),
                9 => {
                    let content = model.entry(key).or_default();
                    let (mut runs, mut end) = (Vec::new(), offset);
                    for _ in 0..=cx.below(2) {
                        let (at, len) = (end + cx.below(5_000) / align * align, 1 + cx.below(2_000));
                        end = at + len.next_multiple_of(align);
                        let is_hole = cx.below(3) == 0;
                        let data = if is_hole {
                            vec![0; (end - at) as usize].into()
                        } else {
                            cx.bytes((end - at) as usize)
                        };
                        put(content, at as usize, &data);
                        runs.push(if is_hole { Run::zeroes(at, end - at) } else { Run::data(at, data) });
                    }
                    (WriteRunsRequest::new(object, runs).into(), true)
                }
                _ => {
                    let source = cx.below(OBJECTS);
                    let content = model.get(&source).cloned().map(|content| model.insert(key, content));
                    let from = cx.object(format!("object-{source}"));
                    (CopyRequest::new(from, object).into(), content.is_some())
                }
            };
        let request = request.durability(durability);
        let what = request.change.name();
        let done = cx.wait(what, |b| b.change(request.clone()))?.map(drop);
        let wanted = if is_done { Ok(()) } else { Err(Error::Missing) };
        ensure!(done == wanted, "{what} at step {step} gave {done:?}, expected {wanted:?}");
        if cx.below(10) == 0 {
            cx.flush(Scope::Namespace(cx.namespace()))?;
        }
        check(cx, &model, key, offset, len)?;
    }
    for key in 0..OBJECTS {
        check(cx, &model, key, 0, SIZE_MAX)?;
    }
    let names: Vec<Vec<u8>> = model.keys().map(|key| format!("object-{key}").into_bytes()).collect();
    ensure!(cx.names(&ListRequest::new(cx.namespace()))? == names, "the listing differs from the model");
    Ok(())
}

/// Writes bytes at an offset, extending the content as needed.
fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() {
        content.resize(content.len().max(at + data.len()), 0);
        content[at..at + data.len()].copy_from_slice(data);
    }
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
