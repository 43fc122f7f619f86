//! Carrying out requests: from a decoded request to a reply in the output buffer.
//!
//! Nothing here reads or writes a socket, and nothing waits. One family of commands per file; each asks the store, counts
//! what memcached would count, and encodes the answer.

mod admin;
mod arithmetic;
mod binary;
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
pub(crate) use dump::{Dump, cachedump, resume as resume_dump};
pub(crate) use get::{many as get_many, plain_keys as get_plain_keys, plain_run as get_plain_run};
pub(crate) use store::{Begun, begin_binary, begin_text, finish, give_up};
pub(crate) use text::execute as text;

use crate::conn::output::Output;
use crate::shared::Shared;
use crate::stats::counters::Counters;
use cached_core::kv::{Kv, Miss};
use cached_proto::text::GetCursor;
use std::os::fd::RawFd;

/// What a request is carried out with.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    pub(crate) out: &'a mut Output,
    /// The client's socket, by which event lines name it.
    pub(crate) client: RawFd,
}

/// How the connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// With the next request.
    Go,
    /// With the same retrieval, once there is room for more values.
    Suspend(GetCursor),
    /// With the rest of a dump, once there is room for more of it.
    Dump(Dump),
    /// As a watcher of these kinds of events.
    Watch(u32),
    /// Not at all: close when the replies are sent.
    Close,
}

impl<'a> Executor<'a> {
    #[inline]
    pub(crate) fn new(
        shared: &'a Shared,
        counters: &'a Counters,
        out: &'a mut Output,
        client: RawFd,
    ) -> Executor<'a> {
        Executor { shared, counters, out, client }
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

    /// Counts why a key that was asked for has no item.
    #[inline]
    fn count_miss_kind(&self, miss: Miss) {
        match miss {
            Miss::Expired => self.counters.get_expired.bump(),
            Miss::Flushed => self.counters.get_flushed.bump(),
            Miss::Absent | Miss::OutOfMemory => {}
        }
    }
}
