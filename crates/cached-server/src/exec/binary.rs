//! Binary requests: the choice of the function, GET and TOUCH.

use super::get::count_touch;
use super::{Executor, Next, arithmetic, delete, flush, store};
use crate::config::settings::MEMCACHED_VERSION;
use crate::stats;
use crate::stream::Output;
use crate::telemetry::heartbeat::Activity;
use cached_core::kv::{FetchOptions, ItemView, Miss};
use cached_proto::binary::{
    Command, Head, Request, Status, encode_done, encode_error, encode_miss, encode_value_head, encode_version,
};

/// Executes one binary request.
pub(crate) fn execute(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    let head = &request.head;
    // A step begins as a plain retrieval.
    if !matches!(request.command, Command::Get { exptime: None, .. }) {
        executor.counters.heartbeat.set_activity(Activity::Binary);
    }
    if executor.work.is_used_up() && matches!(request.command, Command::Stat { .. }) {
        return Next::Defer;
    }
    match &request.command {
        Command::Get { key, with_key, exptime: None } => get(executor, head, key, *with_key),
        Command::Get { key, with_key, exptime: Some(exptime) } => {
            touch(executor, head, key, *with_key, true, *exptime);
        }
        Command::Touch { key, exptime } => touch(executor, head, key, false, false, *exptime),
        Command::Store(command) => store::binary(executor, command),
        Command::Delete { key } => delete::binary(executor, head, key),
        Command::Arithmetic(command) => arithmetic::binary(executor, head, command),
        Command::Flush { exptime } => flush::binary(executor, head, *exptime),
        Command::Noop => encode_done(&mut executor.out.bytes, head, 0),
        Command::Version => encode_version(&mut executor.out.bytes, head, MEMCACHED_VERSION),
        Command::Stat { key } => {
            let Executor { shared, out, work, client, .. } = executor;
            stats::binary(shared, *client, &mut out.bytes, work, head, key);
        }
        Command::Quit => {
            encode_done(&mut executor.out.bytes, head, 0);
            return Next::Close;
        }
    }
    Next::Continue
}

/// GET, GETK.
fn get(executor: &mut Executor<'_>, head: &Head, key: &[u8], with_key: bool) {
    let (kv, counters) = (executor.kv(), executor.counters);
    executor.count_gets(&[key]);
    let out = &mut *executor.out;
    let returned = with_key.then_some(key);
    let result = kv.read(key, kv.hash(key), |item| encode_hit(out, head, returned, item));
    match result {
        Ok(()) => counters.get_hits.bump(),
        Err(miss) => {
            counters.get_misses.bump();
            executor.count_miss_kind(miss);
            encode_miss(&mut executor.out.bytes, head, returned);
        }
    }
    if executor.is_observed() {
        executor.observe_get(key, result);
    }
}

/// TOUCH, GAT, GATK.
fn touch(
    executor: &mut Executor<'_>,
    head: &Head,
    key: &[u8],
    with_key: bool,
    with_value: bool,
    exptime: u32,
) {
    let kv = executor.kv();
    let options = FetchOptions {
        touch: Some(executor.shared.clock.expiry_unsigned(exptime)),
        ..FetchOptions::default()
    };
    let out = &mut *executor.out;
    let returned = with_key.then_some(key);
    let result = kv.fetch(key, kv.hash(key), &options, |item, _| {
        if with_value {
            encode_hit(out, head, returned, item);
        } else {
            encode_value_head(&mut out.bytes, head, item.cas(), item.client_flags(), None, 0);
        }
    });
    match result {
        Ok(()) => {}
        Err(Miss::OutOfMemory) => encode_error(&mut executor.out.bytes, head, Status::OutOfMemory),
        Err(_) => encode_miss(&mut executor.out.bytes, head, returned),
    }
    count_touch(executor, key, result);
}

#[inline]
fn encode_hit(out: &mut Output, head: &Head, key: Option<&[u8]>, item: &ItemView<'_>) {
    encode_value_head(&mut out.bytes, head, item.cas(), item.client_flags(), key, item.value_bytes());
    out.push_value(item);
}
