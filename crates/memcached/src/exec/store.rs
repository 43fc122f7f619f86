//! Commands that store a value, in all three protocols: complete requests, and values received
//! directly into their destination.
//!
//! A `set` whose value cannot be stored (too large, out of memory) also removes the existing item,
//! so that no client reads a value that the sender believes to be replaced; `add` and similar
//! commands leave the item in place. `ms` removes it in every mode. memcached does the same.

use super::Executor;
use crate::settings::{ITEM_ENDS_BYTES, ITEM_HEADER_BYTES};
use crate::stream::Body;
use cached_core::kv::{DeleteOptions, Reservation, StoreMode, StoreOptions, StoreOutcome};
use cached_proto::binary::{self, Status, encode_done, encode_error, encode_error_text};
use cached_proto::meta::{self, Flag, KeyBuffer, MetaItem, SetHeader, SetMode, encode_set};
use cached_proto::text::{self, BodyHeader, StoreHeader, StoreVerb};
use cached_proto::{Decoded, Limits, Protocol, reply};

/// The destination of a value that has not arrived completely.
#[expect(clippy::large_enum_variant, reason = "returned once per large value, and put into a box at once")]
pub(crate) enum Begun {
    /// The value is written to memory reserved in the store.
    Reserved(Reservation),
    /// The value, of this many bytes, must first be collected in a buffer.
    Collect(usize),
    /// The value is refused: the reply is written, and the bytes of the value are discarded.
    Refused,
}

/// The reason why a value cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    TooLarge,
    OutOfMemory,
}

impl Refusal {
    fn of(outcome: StoreOutcome) -> Option<Refusal> {
        match outcome {
            StoreOutcome::TooLarge => Some(Refusal::TooLarge),
            StoreOutcome::OutOfMemory => Some(Refusal::OutOfMemory),
            _ => None,
        }
    }

    fn outcome(self) -> StoreOutcome {
        match self {
            Refusal::TooLarge => StoreOutcome::TooLarge,
            Refusal::OutOfMemory => StoreOutcome::OutOfMemory,
        }
    }

    fn words(self) -> &'static [u8] {
        match self {
            Refusal::TooLarge => reply::TOO_LARGE,
            Refusal::OutOfMemory => reply::OUT_OF_MEMORY_STORING,
        }
    }
}

impl Executor<'_> {
    /// Returns whether a value of this size fits into an item, using memcached's calculation of an
    /// item's size.
    #[inline]
    fn fits(&self, key: &[u8], value_bytes: usize, client_flags: u32) -> bool {
        let settings = &self.shared.settings;
        let flags_bytes = if client_flags == 0 { 0 } else { 4 };
        let cas_bytes = if settings.cas { 8 } else { 0 };
        ITEM_HEADER_BYTES + ITEM_ENDS_BYTES + key.len() + flags_bytes + value_bytes + cas_bytes
            <= settings.item_bytes_max
    }

    fn remove(&self, key: &[u8]) {
        self.kv().delete(key, self.kv().hash(key), &DeleteOptions::default());
    }

    /// Finds a destination for a value that has not arrived completely.
    fn begin(&self, key: &[u8], value_bytes: usize, options: &StoreOptions) -> Result<Begun, Refusal> {
        let kv = self.kv();
        if !self.fits(key, value_bytes, options.client_flags) {
            return Err(Refusal::TooLarge);
        }
        let joins = matches!(options.mode, StoreMode::Append | StoreMode::Prepend);
        if !joins {
            match kv.reserve(key, kv.hash(key), value_bytes, options) {
                Ok(reservation) => return Ok(Begun::Reserved(reservation)),
                // Other arriving values have reserved all the memory that the store allows for
                // reservations. That is no reason to refuse this value.
                Err(StoreOutcome::OutOfMemory) => {}
                Err(outcome) => return Err(Refusal::of(outcome).unwrap_or(Refusal::OutOfMemory)),
            }
        }
        // A value that exceeds the memory limit of all connections together would only cause this
        // connection to be closed before the value is complete.
        let fits = value_bytes < self.shared.live.connection_bytes_max();
        if fits { Ok(Begun::Collect(value_bytes)) } else { Err(Refusal::OutOfMemory) }
    }

    /// Returns whether a value of this size may be collected in a buffer.
    fn may_be_collected(&self, key: &[u8], value_bytes: usize, client_flags: u32) -> bool {
        let fits = self.fits(key, value_bytes, client_flags);
        fits && value_bytes < self.shared.live.connection_bytes_max()
    }

    /// Frees memory that is reserved for a client that does not send the announced value.
    #[cold]
    fn close_stalled(&self) {
        self.shared.connections.close_stalled(self.shared.clock.now_secs());
    }

    /// Returns the outcome that memcached reports: an append that would make an item too large
    /// counts as a failed condition, not as a value that is too large.
    fn memcached_outcome(mode: StoreMode, outcome: StoreOutcome) -> StoreOutcome {
        match outcome {
            StoreOutcome::TooLarge if matches!(mode, StoreMode::Append | StoreMode::Prepend) => {
                StoreOutcome::NotStored
            }
            outcome => outcome,
        }
    }

    #[cold]
    fn count_refusal(&self, key: &[u8], mode: StoreMode, refusal: Refusal) {
        match refusal {
            Refusal::TooLarge => self.counters.refused_too_large.bump(),
            Refusal::OutOfMemory => {
                self.counters.refused_no_memory.bump();
                self.close_stalled();
            }
        }
        if self.is_observed() {
            self.observe_store(key, 0, mode, refusal.outcome());
        }
    }

    /// Counts a store by its outcome.
    #[inline]
    fn count_store(&self, key: &[u8], value_bytes: usize, mode: StoreMode, outcome: StoreOutcome) {
        let counters = self.counters;
        counters.sets.bump();
        if mode == StoreMode::Cas {
            match outcome {
                StoreOutcome::Stored { .. } => counters.cas_hits.bump(),
                StoreOutcome::Exists => counters.cas_badval.bump(),
                StoreOutcome::NotFound => counters.cas_misses.bump(),
                _ => {}
            }
        }
        if self.is_observed() {
            self.observe_store(key, value_bytes, mode, outcome);
        }
    }
}

// ---- text ----

fn text_options(executor: &Executor<'_>, header: &StoreHeader<'_>) -> StoreOptions {
    StoreOptions {
        mode: match header.verb {
            StoreVerb::Set => StoreMode::Set,
            StoreVerb::Add => StoreMode::Add,
            StoreVerb::Replace => StoreMode::Replace,
            StoreVerb::Append => StoreMode::Append,
            StoreVerb::Prepend => StoreMode::Prepend,
            StoreVerb::Cas => StoreMode::Cas,
        },
        client_flags: header.flags,
        expiry: executor.shared.clock.expiry(header.exptime),
        compare: header.cas,
        ..StoreOptions::default()
    }
}

/// Executes `set`, `add`, `replace`, `append`, `prepend` or `cas` with a complete value.
pub(super) fn text(executor: &mut Executor<'_>, command: &text::Store<'_>) {
    let header = &command.header;
    // The size is checked before the terminator.
    if !executor.fits(header.key, header.value_len, header.flags) {
        return text_refused(executor, header, Refusal::TooLarge);
    }
    let Some(value) = command.value() else {
        executor.counters.sets.bump();
        return executor.reply_unless(header.noreply, reply::BAD_DATA_CHUNK);
    };
    let options = text_options(executor, header);
    let kv = executor.kv();
    let outcome = kv.store(header.key, kv.hash(header.key), value, &options);
    text_done(executor, header, options.mode, outcome);
}

fn text_done(executor: &mut Executor<'_>, header: &StoreHeader<'_>, mode: StoreMode, outcome: StoreOutcome) {
    let outcome = Executor::memcached_outcome(mode, outcome);
    if let Some(refusal) = Refusal::of(outcome) {
        return text_refused(executor, header, refusal);
    }
    executor.count_store(header.key, header.value_len, mode, outcome);
    if header.noreply {
        return;
    }
    executor.reply(match outcome {
        StoreOutcome::Stored { .. } => reply::STORED,
        StoreOutcome::Exists => reply::EXISTS,
        StoreOutcome::NotFound => reply::NOT_FOUND,
        _ => reply::NOT_STORED,
    });
}

#[cold]
fn text_refused(executor: &mut Executor<'_>, header: &StoreHeader<'_>, refusal: Refusal) {
    let mode = text_options(executor, header).mode;
    executor.count_refusal(header.key, mode, refusal);
    if header.verb == StoreVerb::Set {
        executor.remove(header.key);
    }
    executor.reply_unless(header.noreply, refusal.words());
}

/// Returns whether a value that has not arrived completely may be collected in a buffer, for another
/// node. A value that this node would refuse is not collected.
pub(crate) fn may_be_collected(executor: &Executor<'_>, protocol: Protocol, head: &[u8]) -> bool {
    match announced(protocol, head) {
        Some(Announced::Text(BodyHeader::Store(header))) => {
            executor.may_be_collected(header.key, header.value_len, header.flags)
        }
        Some(Announced::Text(BodyHeader::MetaSet(header))) => {
            let mut buffer = KeyBuffer::new();
            let key = header.key.bytes(&mut buffer);
            executor.may_be_collected(key, header.value_len, header.flags.client_flags())
        }
        Some(Announced::Binary(header)) => {
            executor.may_be_collected(header.key, header.value_len, header.flags)
        }
        None => false,
    }
}

/// Finds a destination for the value of a text or meta request that has not arrived completely.
pub(crate) fn begin_text(executor: &mut Executor<'_>, header: &BodyHeader<'_>) -> Begun {
    match header {
        BodyHeader::Store(header) => {
            let options = text_options(executor, header);
            executor.begin(header.key, header.value_len, &options).unwrap_or_else(|refusal| {
                text_refused(executor, header, refusal);
                Begun::Refused
            })
        }
        BodyHeader::MetaSet(header) => {
            let options = meta_options(executor, header);
            let mut buffer = KeyBuffer::new();
            let begun = executor.begin(header.key.bytes(&mut buffer), header.value_len, &options);
            begun.unwrap_or_else(|refusal| {
                meta_refused(executor, header, refusal);
                Begun::Refused
            })
        }
    }
}

// ---- meta ----

fn meta_options(executor: &Executor<'_>, header: &SetHeader<'_>) -> StoreOptions {
    let flags = &header.flags;
    let expiry = executor.shared.clock.expiry(header.exptime());
    let compare = flags.compare_cas();
    let mode = match header.mode {
        // A CAS value turns plain stores into conditional ones.
        SetMode::Set | SetMode::Replace if compare.is_some() => StoreMode::Cas,
        SetMode::Set => StoreMode::Set,
        SetMode::Add => StoreMode::Add,
        SetMode::Replace => StoreMode::Replace,
        SetMode::Append => StoreMode::Append,
        SetMode::Prepend => StoreMode::Prepend,
    };
    StoreOptions {
        mode,
        client_flags: flags.client_flags(),
        expiry,
        key_binary: header.key.is_binary(),
        compare: compare.unwrap_or(0),
        allow_stale: mode == StoreMode::Cas && flags.has(Flag::Invalidate),
        new_cas: flags.new_cas(),
        vivify: header.creates().then_some(expiry),
    }
}

/// Executes `ms` with a complete value.
pub(super) fn meta(executor: &mut Executor<'_>, command: &meta::Set<'_>) {
    let header = &command.header;
    let mut buffer = KeyBuffer::new();
    let key = header.key.bytes(&mut buffer);
    if !executor.fits(key, header.value_len, header.flags.client_flags()) {
        return meta_refused(executor, header, Refusal::TooLarge);
    }
    let Some(value) = command.value() else {
        executor.counters.sets.bump();
        return executor.reply(reply::BAD_DATA_CHUNK);
    };
    let options = meta_options(executor, header);
    let kv = executor.kv();
    let outcome = kv.store(key, kv.hash(key), value, &options);
    meta_done(executor, header, &options, key, outcome);
}

fn meta_done(
    executor: &mut Executor<'_>,
    header: &SetHeader<'_>,
    options: &StoreOptions,
    key: &[u8],
    outcome: StoreOutcome,
) {
    let outcome = Executor::memcached_outcome(options.mode, outcome);
    if let Some(refusal) = Refusal::of(outcome) {
        return meta_refused(executor, header, refusal);
    }
    executor.count_store(key, header.value_len, options.mode, outcome);
    let (status, cas, size) = match outcome {
        StoreOutcome::Stored { .. } if header.flags.quiet() => return,
        StoreOutcome::Stored { cas, value_bytes } => (meta::Status::Done, cas, value_bytes),
        StoreOutcome::Exists => (meta::Status::Exists, 0, header.value_len),
        StoreOutcome::NotFound => (meta::Status::NotFound, 0, header.value_len),
        _ => (meta::Status::NotStored, 0, header.value_len),
    };
    let item = MetaItem { key, key_is_binary: header.key.is_binary(), size, cas, ..MetaItem::default() };
    encode_set(&mut executor.out.bytes, status, &header.flags, &item);
}

#[cold]
fn meta_refused(executor: &mut Executor<'_>, header: &SetHeader<'_>, refusal: Refusal) {
    let mode = meta_options(executor, header).mode;
    let mut buffer = KeyBuffer::new();
    let key = header.key.bytes(&mut buffer);
    executor.count_refusal(key, mode, refusal);
    executor.remove(key);
    executor.reply(refusal.words());
}

// ---- binary ----

fn binary_options(executor: &Executor<'_>, header: &binary::StoreHeader<'_>) -> StoreOptions {
    let compare = if executor.shared.settings.cas { header.head.cas } else { 0 };
    let mode = match header.verb {
        binary::StoreVerb::Append => StoreMode::Append,
        binary::StoreVerb::Prepend => StoreMode::Prepend,
        // A CAS value turns all of these commands into compare-and-store, if items have CAS values.
        _ if compare != 0 => StoreMode::Cas,
        binary::StoreVerb::Set => StoreMode::Set,
        binary::StoreVerb::Add => StoreMode::Add,
        binary::StoreVerb::Replace => StoreMode::Replace,
    };
    StoreOptions {
        mode,
        client_flags: header.flags,
        expiry: executor.shared.clock.expiry_unsigned(header.exptime),
        compare,
        ..StoreOptions::default()
    }
}

/// Executes a binary SET or a similar command with a complete value.
#[inline(always)]
pub(super) fn binary(executor: &mut Executor<'_>, command: &binary::Store<'_>) {
    let header = &command.header;
    if !executor.fits(header.key, header.value_len, header.flags) {
        return binary_refused(executor, header, Refusal::TooLarge);
    }
    let options = binary_options(executor, header);
    let kv = executor.kv();
    let outcome = kv.store(header.key, kv.hash(header.key), command.value, &options);
    binary_done(executor, header, options.mode, outcome);
}

fn binary_done(
    executor: &mut Executor<'_>,
    header: &binary::StoreHeader<'_>,
    mode: StoreMode,
    outcome: StoreOutcome,
) {
    let outcome = Executor::memcached_outcome(mode, outcome);
    if let Some(refusal) = Refusal::of(outcome) {
        return binary_refused(executor, header, refusal);
    }
    executor.count_store(header.key, header.value_len, mode, outcome);
    let status = match (outcome, mode) {
        (StoreOutcome::Stored { cas, .. }, _) => {
            return encode_done(&mut executor.out.bytes, &header.head, cas);
        }
        (StoreOutcome::Exists, _) | (StoreOutcome::NotStored, StoreMode::Add) => Status::Exists,
        (StoreOutcome::NotFound, _) | (StoreOutcome::NotStored, StoreMode::Replace) => Status::NotFound,
        _ => Status::NotStored,
    };
    encode_error(&mut executor.out.bytes, &header.head, status);
}

#[cold]
fn binary_refused(executor: &mut Executor<'_>, header: &binary::StoreHeader<'_>, refusal: Refusal) {
    // As in memcached, such a request is observed, but not counted.
    if executor.is_observed() {
        let mode = binary_options(executor, header).mode;
        executor.observe_store(header.key, 0, mode, refusal.outcome());
    }
    if header.verb == binary::StoreVerb::Set {
        executor.remove(header.key);
    }
    match refusal {
        Refusal::TooLarge => {
            encode_error(&mut executor.out.bytes, &header.head, Status::TooLarge);
        }
        Refusal::OutOfMemory => {
            executor.close_stalled();
            let out = &mut executor.out.bytes;
            encode_error_text(out, &header.head, Status::OutOfMemory, "Out of memory allocating item");
        }
    }
}

/// Finds a destination for the value of a binary request that has not arrived completely.
pub(crate) fn begin_binary(executor: &mut Executor<'_>, header: &binary::StoreHeader<'_>) -> Begun {
    let options = binary_options(executor, header);
    executor.begin(header.key, header.value_len, &options).unwrap_or_else(|refusal| {
        binary_refused(executor, header, refusal);
        Begun::Refused
    })
}

// ---- values that arrived in pieces ----

/// The request that the head of a body announces.
enum Announced<'a> {
    Text(BodyHeader<'a>),
    Binary(binary::StoreHeader<'a>),
}

fn announced(protocol: Protocol, head: &[u8]) -> Option<Announced<'_>> {
    match protocol {
        Protocol::Text => match text::decode(head, 0, &Limits::DEFAULT) {
            Decoded::Body { header, .. } => Some(Announced::Text(header)),
            _ => None,
        },
        Protocol::Binary => match binary::decode(head) {
            Decoded::Body { header, .. } => Some(Announced::Binary(header)),
            _ => None,
        },
    }
}

/// Stores a value that has arrived completely, and replies.
pub(crate) fn finish(executor: &mut Executor<'_>, mut body: Body) {
    let head: Box<[u8]> = std::mem::take(&mut body.head);
    let terminated = body.is_terminated();
    match announced(body.protocol, &head) {
        Some(Announced::Text(BodyHeader::Store(header))) => {
            if !terminated {
                executor.counters.sets.bump();
                return executor.reply_unless(header.noreply, reply::BAD_DATA_CHUNK);
            }
            let options = text_options(executor, &header);
            let outcome = body.store(executor.kv(), header.key, &options);
            text_done(executor, &header, options.mode, outcome);
        }
        Some(Announced::Text(BodyHeader::MetaSet(header))) => {
            if !terminated {
                executor.counters.sets.bump();
                return executor.reply(reply::BAD_DATA_CHUNK);
            }
            let options = meta_options(executor, &header);
            let mut buffer = KeyBuffer::new();
            let key = header.key.bytes(&mut buffer);
            let outcome = body.store(executor.kv(), key, &options);
            meta_done(executor, &header, &options, key, outcome);
        }
        Some(Announced::Binary(header)) => {
            let options = binary_options(executor, &header);
            let outcome = body.store(executor.kv(), header.key, &options);
            binary_done(executor, &header, options.mode, outcome);
        }
        // The same bytes have already been decoded as the head of a body.
        None => unreachable!("a body's head announces a body"),
    }
}

/// Replies to a value for which memory ran out while it was arriving.
#[cold]
pub(crate) fn refuse(executor: &mut Executor<'_>, mut body: Body) {
    let head: Box<[u8]> = std::mem::take(&mut body.head);
    match announced(body.protocol, &head) {
        Some(Announced::Text(BodyHeader::Store(header))) => {
            text_refused(executor, &header, Refusal::OutOfMemory);
        }
        Some(Announced::Text(BodyHeader::MetaSet(header))) => {
            meta_refused(executor, &header, Refusal::OutOfMemory);
        }
        Some(Announced::Binary(header)) => binary_refused(executor, &header, Refusal::OutOfMemory),
        None => unreachable!("a body's head announces a body"),
    }
}
