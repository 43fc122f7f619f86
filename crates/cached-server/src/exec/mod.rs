//! Execution of requests: from a decoded request to a reply in the output buffer.
//!
//! Nothing here reads or writes a socket, and nothing waits. One file for each family of commands; each calls
//! the store, counts what memcached would count, and encodes the reply. `text` and `binary` choose the
//! function for a request of their protocol.
//!
//! | question | file |
//! |---|---|
//! | `get`, `gets`, `gat`, `touch` | `get`, `encode` |
//! | `mg` | `meta` |
//! | `set` and its like in all protocols, where a `cas` is turned into a conditional store | `store` |
//! | `delete`, `incr`, `me`, `flush_all`, `flush_prefix` | `delete`, `arithmetic`, `debug`, `flush` |
//! | `config get cluster` | `cluster` |
//! | `lru_crawler metadump`, `mgdump`, `stats cachedump` | `dump` |
//! | `verbosity`, `watch`, `shutdown`, `slabs`, `lru` | `admin` |

mod admin;
mod arithmetic;
mod binary;
mod cluster;
mod debug;
mod delete;
mod dump;
mod encode;
mod flush;
mod get;
mod meta;
mod observe;
mod store;
mod text;

pub(crate) use binary::execute as binary;
pub(crate) use dump::{Dump, resume as resume_dump};
pub(crate) use get::{many as get_many, plain_keys as get_plain_keys, plain_run as get_plain_run};
pub(crate) use store::{Begun, begin_binary, begin_text, finish, refuse};
pub(crate) use text::execute as text;

use crate::shared::Shared;
use crate::stats::Work;
use crate::stream::Output;
use crate::telemetry::counters::Counters;
use cached_core::kv::{Kv, Miss};
use cached_proto::text::GetCursor;
use std::os::fd::RawFd;

/// The means of executing requests of one connection.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    pub(crate) out: &'a mut Output,
    /// What is left for costly requests.
    pub(crate) work: &'a mut Work,
    /// The client's socket, by which event lines name it.
    pub(crate) client: RawFd,
}

/// How a connection continues after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// With the next request.
    Continue,
    /// With the same retrieval, once there is room for more values.
    Suspend(GetCursor),
    /// With the same request, which has not begun, once other connections have been served.
    Defer,
    /// With the rest of a dump, once there is room for more of it and other connections have been served.
    Dump(Dump),
    /// As a watcher of events of these kinds.
    Watch(u32),
    /// Not at all: it is closed when the replies are sent.
    Close,
}

impl<'a> Executor<'a> {
    #[inline]
    pub(crate) fn new(
        shared: &'a Shared,
        counters: &'a Counters,
        out: &'a mut Output,
        work: &'a mut Work,
        client: RawFd,
    ) -> Executor<'a> {
        Executor { shared, counters, out, work, client }
    }

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

    /// Counts gets of these keys; some are sampled for the hot keys.
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
