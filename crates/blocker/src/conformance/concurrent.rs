//! Concurrent callers: no data are torn or lost, and no caller delays another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::context::{Check, Cx, Stop, ensure};
use crate::executor::block_on_for;
use crate::{
    BUCKET_BYTES, Blocker, BlockerExt, CompareAndWriteRequest, Condition, Error, ObjectId, ReadRequest, Run,
    WriteFullRequest, WriteRequest, WriteRunsRequest,
};

const WRITERS: u8 = 3;

/// State shared by callers on other threads: the backend, and the timeout of its replies.
type Shared = (Arc<dyn Blocker>, Duration);

/// Runs `work` on `threads` threads. Returns the first failure.
fn on_threads(count: u8, work: impl Fn(u8) -> Check + Sync) -> Check {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        let failed = |_| Err(Stop::Fail("a caller panicked".into()));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(failed))
    })
}

/// Makes a call as [`Cx::wait`] does, from a thread that has no context.
macro_rules! call {
    ($cx:expr, $call:expr) => {
        loop {
            match block_on_for($call, $cx.1) {
                None => return Err(Stop::Fail("no answer".into())),
                Some(Err(Error::Retryable(_))) => std::thread::yield_now(),
                Some(answer) => break answer,
            }
        }
    };
}

fn failed(error: Error) -> Stop {
    Stop::Fail(error.to_string())
}

pub(super) fn a_bucket_is_never_seen_half_written(cx: &Cx<'_>) -> Check {
    let object = cx.object("torn");
    let write = |shared: &Shared, size: u64, byte: u8| {
        let data = Bytes::from(vec![byte; size as usize]);
        let request = WriteRequest::new(object.clone(), 0, data);
        call!(shared, shared.0.write(request.clone())).map(drop).map_err(failed)
    };
    never_seen_in_part(cx, &object, write, |size, bytes| {
        let len = size as usize;
        ensure!(bytes.len() == len, "a reader found {} bytes of {len}", bytes.len());
        ensure!(bytes.iter().all(|byte| *byte == bytes[0]), "a reader found a mix of two writes");
        Ok(())
    })
}

pub(super) fn runs_are_seen_all_or_none(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.runs_max > 2, "write_runs")?;
    let object = cx.object("runs");
    let places = |size: u64| [0, size / 2, size - 1];
    let write = |shared: &Shared, size: u64, byte: u8| {
        let run = |at| Run::data(at, Bytes::from(vec![byte]));
        let request = WriteRunsRequest::new(object.clone(), places(size).map(run).into());
        call!(shared, shared.0.write_runs(request.clone())).map(drop).map_err(failed)
    };
    never_seen_in_part(cx, &object, write, |size, bytes| {
        let found = places(size).map(|at| bytes[at as usize]);
        ensure!(found == [found[0]; 3], "a reader found runs of several changes: {found:?}");
        Ok(())
    })
}

/// Writers fill a range with one byte value at a time by calling `write`, while a reader passes
/// everything that it reads to `check`. The range is one bucket, and then the largest atomic write.
fn never_seen_in_part(
    cx: &Cx<'_>,
    object: &ObjectId,
    write: impl Fn(&Shared, u64, u8) -> Check + Sync,
    check: impl Fn(u64, &[u8]) -> Check + Sync,
) -> Check {
    let rounds = 300 * cx.options.effort;
    let far = cx.caps.atomic_bytes.clamp(BUCKET_BYTES, 64 << 10).min(cx.caps.object_bytes_max);
    for size in [BUCKET_BYTES, far] {
        cx.write(object, 0, &vec![0; size as usize])?;
        let shared = (cx.backend(), cx.options.timeout);
        let done = AtomicBool::new(false);
        on_threads(WRITERS + 1, |index| {
            if index < WRITERS {
                for round in 0..rounds {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    write(&shared, size, (round as u8).wrapping_mul(WRITERS).wrapping_add(index))?;
                }
                return Ok(());
            }
            for _ in 0..rounds {
                let request = ReadRequest::new(object.clone(), 0, size);
                let reply = call!(shared, shared.0.read(request.clone())).map_err(failed)?;
                check(size, &reply.data.to_vec())?;
            }
            done.store(true, Ordering::Relaxed);
            Ok(())
        })?;
    }
    Ok(())
}

/// Each thread increments a counter in the object, by the safe method `add`.
fn count_up(cx: &Cx<'_>, name: &str, add: impl Fn(&Shared) -> Check<bool> + Sync) -> Check {
    let object = cx.object(name);
    cx.write(&object, 0, &0_u64.to_le_bytes())?;
    let shared = (cx.backend(), cx.options.timeout);
    let per_thread = 60 * cx.options.effort;
    on_threads(WRITERS, |_| {
        for _ in 0..per_thread {
            while !add(&shared)? {}
        }
        Ok(())
    })?;
    let bytes = cx.read(&object)?;
    let wanted = u64::from(per_thread) * u64::from(WRITERS);
    ensure!(bytes == wanted.to_le_bytes(), "{wanted} additions gave {bytes:?}");
    Ok(())
}

fn number(bytes: &[u8]) -> Check<u64> {
    let number = bytes.try_into().map(u64::from_le_bytes);
    number.map_err(|_| Stop::Fail(format!("the counter has {} bytes", bytes.len())))
}

pub(super) fn conditional_changes_lose_no_update(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.conditions, "conditions")?;
    let object = cx.object("counter");
    count_up(cx, "counter", |shared| {
        let read = call!(shared, shared.0.read(ReadRequest::new(object.clone(), 0, 8))).map_err(failed)?;
        let next = number(&read.data.to_vec())? + 1;
        let data = Bytes::copy_from_slice(&next.to_le_bytes());
        let request = WriteRequest::new(object.clone(), 0, data).if_version(read.version);
        match call!(shared, shared.0.write(request.clone())) {
            Ok(_) => Ok(true),
            Err(Error::ConditionFailed { .. }) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    })
}

pub(super) fn compare_and_write_loses_no_update(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.compare_bytes_max >= 8, "compare_and_write of 8 bytes")?;
    let object = cx.object("counter");
    count_up(cx, "counter", |shared| {
        let read = call!(shared, shared.0.read(ReadRequest::new(object.clone(), 0, 8))).map_err(failed)?;
        let old = read.data.to_bytes();
        let new = Bytes::copy_from_slice(&(number(&old)? + 1).to_le_bytes());
        let request = CompareAndWriteRequest::new(object.clone(), 0, old, new);
        match call!(shared, shared.0.compare_and_write(request.clone())) {
            Ok(_) => Ok(true),
            Err(Error::Mismatch { .. }) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    })
}

pub(super) fn only_one_creator_wins(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.conditions, "conditions")?;
    for round in 0..10 * cx.options.effort {
        let object = cx.object(format!("created-{round}"));
        let shared = (cx.backend(), cx.options.timeout);
        let winners = AtomicU32::new(0);
        on_threads(WRITERS, |index| {
            let data = Bytes::from(vec![index; 100]);
            let request = WriteFullRequest::new(object.clone(), data).condition(Condition::Absent);
            match call!(shared, shared.0.write_full(request.clone())) {
                Ok(_) => winners.fetch_add(1, Ordering::Relaxed),
                Err(Error::Exists) => 0,
                Err(error) => return Err(failed(error)),
            };
            Ok(())
        })?;
        let winners = winners.into_inner();
        ensure!(winners == 1, "{winners} callers created the same object");
    }
    Ok(())
}

pub(super) fn objects_do_not_disturb_each_other(cx: &Cx<'_>) -> Check {
    let objects: Vec<_> = (0..WRITERS).map(|index| cx.object([b'o', index])).collect();
    let shared = (cx.backend(), cx.options.timeout);
    let rounds = 50 * cx.options.effort;
    on_threads(WRITERS, |index| {
        let object = &objects[usize::from(index)];
        for round in 0..rounds {
            let data = Bytes::from(vec![index ^ round as u8; 5_000]);
            let offset = u64::from(round % 3) * 3_000;
            let request = WriteRequest::new(object.clone(), offset, data.clone());
            call!(shared, shared.0.write(request.clone())).map_err(failed)?;
            let read = ReadRequest::new(object.clone(), offset, 5_000);
            let reply = call!(shared, shared.0.read(read.clone())).map_err(failed)?;
            ensure!(reply.data == *data, "a caller alone on its object read other bytes than it wrote");
        }
        Ok(())
    })
}
