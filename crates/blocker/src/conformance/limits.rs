//! Limits are exactly as large as the capabilities state; a request beyond one gets a clear error.

use super::context::{Check, Cx, ensure, same_bytes};
use crate::{
    BUCKET_BYTES, ClaimRequest, CompareAndWriteRequest, Condition, CopyRequest, DiscardRequest, Epoch, Error,
    ReadRequest, Run, Scope, Segments, Stamp, TruncateRequest, WriteFullRequest, WriteRequest,
    WriteRunsRequest, WriteZeroesRequest,
};

fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::TooLarge { .. })
}

pub(super) fn an_object_may_be_as_large_as_the_limit(cx: &Cx<'_>) -> Check {
    let (object, limit) = (cx.object("large"), cx.caps.object_bytes_max);
    ensure!(cx.caps.request_bytes_max >= BUCKET_BYTES, "a request must be able to carry a bucket");
    let reply = cx.write(&object, limit - 1, b"x")?;
    ensure!(reply.size_bytes == limit, "the largest object has {} bytes", reply.size_bytes);
    let last = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), limit - 2, 4)))?;
    same_bytes(&last.data.to_vec(), b"\0x")?;
    cx.done(TruncateRequest::new(object.clone(), 0))?;
    cx.done(TruncateRequest::new(object.clone(), limit))?;
    ensure!(cx.info(&object)?.size_bytes == limit, "truncate does not reach the limit");
    // The largest payload is written at the very end of the object.
    let largest = cx.caps.request_bytes_max.min(limit).min(16 << 20);
    let data = cx.bytes(largest as usize);
    cx.write(&object, limit - largest, &data)?;
    let read = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), limit - largest, largest)))?;
    same_bytes(&read.data.to_vec(), &data)?;
    if largest == limit {
        cx.done(WriteFullRequest::new(object.clone(), data.clone()))?;
        cx.done(CopyRequest::new(object.clone(), cx.object("copy")))?;
        cx.expect(&cx.object("copy"), &data)?;
    }
    Ok(())
}

pub(super) fn one_byte_more_is_too_large(cx: &Cx<'_>) -> Check {
    let (object, limit) = (cx.object("larger"), cx.caps.object_bytes_max);
    cx.refused(WriteRequest::new(object.clone(), limit, b"x"), is_too_large)?;
    cx.refused(WriteRequest::new(object.clone(), limit - 1, b"xy"), is_too_large)?;
    cx.refused(WriteZeroesRequest::new(object.clone(), limit - 1, 2), is_too_large)?;
    if limit <= 16 << 20 {
        cx.refused(WriteFullRequest::new(object.clone(), Segments::zeros(limit as usize + 1)), is_too_large)?;
    }
    cx.is_missing(&object)?;
    cx.write(&object, 0, b"x")?;
    cx.refused(TruncateRequest::new(object.clone(), limit + 1), is_too_large)?;
    let read = ReadRequest::new(object.clone(), 0, cx.caps.request_bytes_max + 1);
    cx.fails("read beyond request_bytes_max", |b| b.read(read.clone()), is_too_large)?;
    cx.expect(&object, b"x")
}

pub(super) fn overflowing_ranges_are_refused(cx: &Cx<'_>) -> Check {
    let object = cx.object("overflow");
    cx.write(&object, 0, b"x")?;
    cx.refused(WriteRequest::new(object.clone(), u64::MAX, b"xy"), is_too_large)?;
    cx.refused(WriteZeroesRequest::new(object.clone(), u64::MAX - 1, u64::MAX), is_too_large)?;
    cx.refused(TruncateRequest::new(object.clone(), u64::MAX), is_too_large)?;
    cx.done(DiscardRequest::new(object.clone(), u64::MAX, u64::MAX))?;
    cx.expect(&object, b"x")
}

pub(super) fn compare_works_up_to_its_limit(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.compare_bytes_max > 0, "compare_and_write")?;
    let object = cx.object("compare");
    let len = cx.caps.compare_bytes_max.min(cx.caps.object_bytes_max - 1).min(8 << 20) as usize;
    let old = cx.bytes(len + 1);
    cx.write(&object, 0, &old)?;
    cx.done(CompareAndWriteRequest::new(object.clone(), 0, old.slice(..len), b"new"))?;
    if len as u64 == cx.caps.compare_bytes_max {
        cx.refused(CompareAndWriteRequest::new(object.clone(), 0, old, b"NO!"), is_too_large)?;
    }
    let read = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), 0, 3)))?;
    same_bytes(&read.data.to_vec(), b"new")
}

pub(super) fn runs_work_up_to_their_limit(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.runs_max > 1, "write_runs")?;
    let object = cx.object("runs");
    let count = cx.caps.runs_max.min(64 << 10) as usize;
    let data = cx.bytes(count + 1);
    let run = |index: usize| Run::data(2 * index as u64, data.slice(index..index + 1));
    cx.done(WriteRunsRequest::new(object.clone(), (0..count).map(run).collect()))?;
    let wanted: Vec<u8> = (0..2 * count - 1).map(|at| if at % 2 == 0 { data[at / 2] } else { 0 }).collect();
    cx.expect(&object, &wanted)?;
    if count == cx.caps.runs_max as usize {
        cx.refused(WriteRunsRequest::new(object.clone(), (0..=count).map(run).collect()), is_invalid)?;
    }
    // The largest request ends exactly at the maximum size.
    let limit = cx.caps.object_bytes_max;
    let largest = cx.caps.request_bytes_max.min(limit - 1).min(16 << 20);
    let data = cx.bytes(largest as usize);
    let half = data.len() / 2;
    let runs = vec![
        Run::data(limit - largest - 1, data.slice(..half)),
        Run::data(limit - largest + half as u64, data.slice(half..)),
    ];
    cx.done(WriteRunsRequest::new(object.clone(), runs))?;
    let read = ReadRequest::new(object, limit - largest + half as u64, largest);
    let read = cx.ok("read", |b| b.read(read.clone()))?;
    same_bytes(&read.data.to_vec(), &data[half..])
}

/// Returns whether the error is the expected refusal.
type Refusal = fn(&Error) -> bool;

fn is_invalid(error: &Error) -> bool {
    matches!(error, Error::Invalid(_))
}

pub(super) fn invalid_runs_are_refused(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.runs_max > 1, "write_runs")?;
    let object = cx.object("refused");
    let before = cx.write(&object, 0, b"intact")?.version;
    let limit = cx.caps.object_bytes_max;
    let refused: Vec<(&str, Vec<Run>, Refusal)> = vec![
        ("no run", Vec::new(), is_invalid),
        ("an empty run", vec![Run::data(0, b"x"), Run::data(8, b"")], is_invalid),
        ("an empty run of zeros", vec![Run::zeroes(0, 0)], is_invalid),
        ("runs that overlap", vec![Run::data(0, b"xy"), Run::data(1, b"z")], is_invalid),
        ("runs in another order", vec![Run::data(4, b"x"), Run::data(0, b"y")], is_invalid),
        ("a run past the limit", vec![Run::data(0, b"x"), Run::data(limit, b"y")], is_too_large),
        ("a run past all limits", vec![Run::data(0, b"x"), Run::zeroes(u64::MAX, 2)], is_too_large),
        ("zeros beyond the maximum size", vec![Run::zeroes(0, u64::MAX)], is_too_large),
    ];
    for (what, runs, is_right) in refused {
        let request = WriteRunsRequest::new(object.clone(), runs);
        cx.refused(request, is_right)?;
        cx.expect(&object, b"intact")?;
        ensure!(cx.info(&object)?.version == before, "{what}: refused, but the object changed");
    }
    Ok(())
}

pub(super) fn what_is_not_supported_is_refused_as_such(cx: &Cx<'_>) -> Check {
    let caps = cx.caps;
    let object = cx.object("unsupported");
    cx.write(&object, 0, b"x")?;
    let unsupported = |error: &Error| matches!(error, Error::Unsupported(_));
    if !caps.conditions {
        cx.refused(WriteRequest::new(object.clone(), 0, b"y").condition(Condition::Present), unsupported)?;
    }
    if !caps.fencing {
        cx.refused(WriteRequest::new(object.clone(), 0, b"y").stamp(Stamp::new(1, 1)), unsupported)?;
        let request = ClaimRequest::new(Scope::Object(object.clone()), Epoch(1), super::fencing::WRITER);
        cx.fails("claim", |b| b.claim(request.clone()), unsupported)?;
    }
    if caps.runs_max == 0 {
        cx.refused(WriteRunsRequest::new(object.clone(), vec![Run::data(0, b"y")]), unsupported)?;
    }
    if caps.compare_bytes_max == 0 {
        cx.refused(CompareAndWriteRequest::new(object.clone(), 0, b"x", b"y"), unsupported)?;
    }
    cx.expect(&object, b"x")
}
