//! Execution of requests: from a decoded request to a reply in the output buffer. Nothing here
//! accesses a socket or blocks.
//!
//! There is one file for each family of commands; each command calls the store, counts what
//! memcached would count, and encodes the reply. This file dispatches the requests of each
//! protocol.
//!
//! | commands | file |
//! |---|---|
//! | `get`, `gets`, `gat`, `touch` | `get` |
//! | `mg`, `me` | `meta` |
//! | `set` and the like in all protocols; where a CAS value turns one into a conditional store | `store` |
//! | `delete`, `incr`, `decr`, `flush_all`, `flush_prefix` in all protocols | `change` |
//! | `lru_crawler metadump`, `mgdump`, `stats cachedump` | `dump` |
//! | `verbosity`, `watch`, `shutdown`, `slabs`, `lru`, `config get cluster` | `admin` |
//!
//! `target` says which node of a ring executes a request.

mod admin;
mod change;
mod dump;
mod get;
mod meta;
mod store;
mod target;

pub(crate) use dump::{Dump, resume as resume_dump};
pub(crate) use get::{
    many as get_many, one_of_many as get_one_of_many, plain_keys as get_plain_keys,
    plain_run as get_plain_run,
};
pub(crate) use store::{Begun, begin_binary, begin_text, finish, may_be_collected, refuse};
pub(crate) use target::{Target, away, binary_target, body_key, text_target};

use crate::settings::MEMCACHED_VERSION;
use crate::shared::Shared;
use crate::stats::{self, Work};
use crate::stream::Output;
use crate::telemetry::counters::Counters;
use crate::telemetry::heartbeat::Activity;
use crate::telemetry::watch::{DELETIONS, DETAIL, FETCHERS, ItemSummary, MUTATIONS};
use cached_core::kv::{FetchOptions, ItemView, Kv, Miss, StoreMode, StoreOutcome};
use cached_proto::binary::{
    self, Command, Head, Status, encode_done, encode_error, encode_miss, encode_value_head, encode_version,
};
use cached_proto::reply;
use cached_proto::text::{self, GetCursor, Request};
use get::count_touch;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// The state that is necessary to execute the requests of one connection.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    pub(crate) out: &'a mut Output,
    /// The remaining budget for costly requests.
    pub(crate) work: &'a mut Work,
    /// The client's socket, by which event lines identify the client.
    pub(crate) client: RawFd,
}

/// The way in which a connection continues after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Continue with the next request.
    Continue,
    /// Continue the same retrieval once the output has space for more values.
    Suspend(GetCursor),
    /// Execute the same request, which has not begun, once other connections have been served.
    Defer,
    /// Continue the dump once the output has space for more and other connections have been served.
    Dump(Dump),
    /// Continue as a watcher of events of these kinds.
    Watch(u32),
    /// Close the connection once the replies are sent.
    Close,
}

impl<'a> Executor<'a> {
    #[inline]
    fn kv(&self) -> &'a Kv {
        &self.shared.kv
    }

    #[inline]
    fn reply(&mut self, words: &[u8]) {
        self.out.bytes.extend_from_slice(words);
    }

    #[inline]
    fn reply_unless(&mut self, noreply: bool, words: &[u8]) {
        if !noreply {
            self.reply(words);
        }
    }

    /// Counts gets of these keys, and samples some of them to find hot keys.
    #[inline]
    fn count_gets(&self, keys: &[&[u8]]) {
        if let Some(gets) = self.counters.count_gets(keys.len() as u64) {
            let Counters { worker, next_sample, .. } = self.counters;
            self.shared.insight.hot.sample(*worker, next_sample, gets, keys);
        }
    }

    /// Counts the reason for a miss.
    #[inline]
    fn count_miss_kind(&self, miss: Miss) {
        match miss {
            Miss::Expired => self.counters.get_expired.bump(),
            Miss::Flushed => self.counters.get_flushed.bump(),
            Miss::Absent | Miss::OutOfMemory => {}
        }
    }
}

/// Executes one text or meta request.
#[inline]
pub(crate) fn text(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    if let Request::Get(get) = request {
        return get::many(executor, &mut get.clone());
    }
    text_other(executor, request)
}

/// Executes a request other than a retrieval. The function is not inlined, so that the path of
/// retrievals stays short.
#[inline(never)]
fn text_other(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    executor.counters.heartbeat.set_activity(Activity::of(request));
    if executor.work.is_used_up() && is_costly(request) {
        return Next::Defer;
    }
    match request {
        Request::Get(get) => return get::many(executor, &mut get.clone()),
        Request::Store(command) => store::text(executor, command),
        Request::MetaGet(command) => meta::get(executor, command),
        Request::MetaSet(command) => store::meta(executor, command),
        Request::Delete(command) => change::delete(executor, command),
        Request::MetaDelete(command) => change::meta_delete(executor, command),
        Request::Arithmetic(command) => change::arithmetic(executor, command),
        Request::MetaArithmetic(command) => change::meta_arithmetic(executor, command),
        Request::Touch(command) => get::touch(executor, command),
        Request::MetaNoop => executor.reply(reply::META_NOOP),
        Request::MetaDebug(command) => meta::debug(executor, command),
        Request::FlushAll(command) => change::flush_all(executor, command),
        Request::FlushPrefix(command) => change::flush_prefix(executor, command),
        Request::Version => text::encode_version(&mut executor.out.bytes, MEMCACHED_VERSION),
        Request::Quit => return Next::Close,
        Request::Verbosity(command) => admin::verbosity(executor, command),
        Request::Stats(tokens) if tokens.is_prefix_of(1, "cachedump") => {
            return dump::class(executor, tokens);
        }
        Request::Stats(tokens) => {
            let Executor { shared, out, work, client, .. } = executor;
            stats::text(shared, *client, &mut out.bytes, work, tokens);
        }
        Request::Admin(command) => return admin::execute(executor, command),
    }
    Next::Continue
}

/// Returns whether the cost of a request is not proportional to the bytes of the request and its
/// reply.
fn is_costly(request: &Request<'_>) -> bool {
    matches!(request, Request::Stats(_) | Request::Admin(_) | Request::FlushPrefix(_))
}

/// Executes one binary request, for callers other than the loop of a connection.
#[inline(never)]
pub(crate) fn binary_other(executor: &mut Executor<'_>, request: &binary::Request<'_>) -> Next {
    binary(executor, request)
}

/// Executes one binary request. It is part of the loop of a connection, as its most frequent commands
/// are: a call would cost a hundredth of a get.
#[inline(always)]
pub(crate) fn binary(executor: &mut Executor<'_>, request: &binary::Request<'_>) -> Next {
    let head = &request.head;
    // The heartbeat starts each step as a plain retrieval.
    if !matches!(request.command, Command::Get { exptime: None, .. }) {
        executor.counters.heartbeat.set_activity(Activity::Binary);
    }
    if executor.work.is_used_up() && matches!(request.command, Command::Stat { .. }) {
        return Next::Defer;
    }
    match &request.command {
        Command::Get { key, with_key, exptime: None } => binary_get(executor, head, key, *with_key),
        Command::Get { key, with_key, exptime: Some(exptime) } => {
            binary_touch(executor, head, key, *with_key, true, *exptime);
        }
        Command::Touch { key, exptime } => binary_touch(executor, head, key, false, false, *exptime),
        Command::Store(command) => store::binary(executor, command),
        Command::Delete { key } => change::binary_delete(executor, head, key),
        Command::Arithmetic(command) => change::binary_arithmetic(executor, head, command),
        Command::Flush { exptime } => change::binary_flush(executor, head, *exptime),
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

/// Executes a binary GET or GETK.
#[inline(always)]
fn binary_get(executor: &mut Executor<'_>, head: &Head, key: &[u8], with_key: bool) {
    let (kv, counters) = (executor.kv(), executor.counters);
    executor.count_gets(&[key]);
    let out = &mut *executor.out;
    let returned = with_key.then_some(key);
    let result = kv.read(key, kv.hash(key), |item| encode_binary_hit(out, head, returned, item));
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

/// Executes a binary TOUCH, GAT or GATK.
fn binary_touch(
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
            encode_binary_hit(out, head, returned, item);
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
fn encode_binary_hit(out: &mut Output, head: &Head, key: Option<&[u8]>, item: &ItemView<'_>) {
    encode_value_head(&mut out.bytes, head, item.cas(), item.client_flags(), key, item.value_bytes());
    out.push_value(item);
}

// Observed requests: counts for `stats detail`, and event lines for `watch`. Requests check
// `is_observed`, a single word, and call these functions only if it is true. The functions look up
// the item again, so that the usual path costs nothing more; another client may have changed the
// item in between.

impl Executor<'_> {
    /// Returns whether requests are observed. A request can change this in the middle of a batch.
    #[inline]
    fn is_observed(&self) -> bool {
        self.shared.observed_events.load(Ordering::Relaxed) != 0
    }

    fn wants(&self, kind: u32) -> bool {
        self.shared.observed_events.load(Ordering::Relaxed) & kind != 0
    }

    /// Reports a retrieval.
    #[cold]
    fn observe_get(&self, key: &[u8], result: Result<(), Miss>) {
        if self.wants(DETAIL) {
            self.shared.prefixes.record_get(key, result.is_ok());
        }
        if self.wants(FETCHERS) {
            let status = match result {
                Ok(()) => "found",
                Err(Miss::Expired) => "expired",
                Err(Miss::Flushed) => "flushed",
                Err(_) => "not_found",
            };
            let item = if result.is_ok() { self.summary_of(key) } else { None };
            self.shared.watch.fetched(key, item, status, self.client);
        }
    }

    /// Reports an attempt to store.
    #[cold]
    fn observe_store(&self, key: &[u8], value_bytes: usize, mode: StoreMode, outcome: StoreOutcome) {
        let refused = matches!(outcome, StoreOutcome::TooLarge | StoreOutcome::OutOfMemory);
        if self.wants(DETAIL) && !refused {
            self.shared.prefixes.record_set(key);
        }
        if self.wants(MUTATIONS) {
            let stored =
                matches!(outcome, StoreOutcome::Stored { .. }).then(|| self.summary_of(key)).flatten();
            let item = stored.unwrap_or_else(|| ItemSummary {
                class: self.class(key, value_bytes, 0),
                value_bytes: if refused { 0 } else { value_bytes },
                ttl_secs: 0,
            });
            self.shared.watch.stored(key, item, mode, outcome, self.client);
        }
    }

    /// Reports a deletion that is about to happen. Returns the summary of the item that
    /// [`observe_delete`](Self::observe_delete) needs.
    #[cold]
    fn observe_before_delete(&self, key: &[u8]) -> Option<ItemSummary> {
        if self.wants(DETAIL) {
            self.shared.prefixes.record_delete(key);
        }
        if self.wants(DELETIONS) { self.summary_of(key) } else { None }
    }

    /// Reports that an item was deleted.
    #[cold]
    fn observe_delete(&self, key: &[u8], item: ItemSummary, command: &str) {
        self.shared.watch.deleted(key, item, command);
    }

    fn summary_of(&self, key: &[u8]) -> Option<ItemSummary> {
        let kv = self.kv();
        let summary = kv.peek(key, kv.hash(key), |item| ItemSummary {
            class: self.class(key, item.value_bytes(), item.client_flags()),
            value_bytes: item.value_bytes(),
            ttl_secs: item.expiry().remaining_secs(item.now()).unwrap_or(0),
        });
        summary.ok()
    }

    fn class(&self, key: &[u8], value_bytes: usize, client_flags: u32) -> u32 {
        self.shared.size_classes.class_of_item(key.len(), value_bytes, client_flags, self.shared.settings.cas)
    }
}
