//! Administrative commands.
//!
//! Settings of memcached's slabs and LRU threads, which this engine does not have, are validated
//! and stored for `stats settings`; they have no other effect.

use super::dump::{Dump, DumpKind};
use super::{Executor, Next};
use crate::connections::Endpoints;
use crate::settings::size_classes;
use crate::settings::{Discovery, encode_cluster};
use crate::shared::live::refresh_certificates;
use crate::telemetry::watch::{EVENT_NAMES, FETCHERS, Refused};
use cached_core::kv::ScanCursor;
use cached_proto::text::{Admin, Tokens, Verb, Verbosity};
use cached_proto::{number, reply};
use cached_ring::host_and_port;
use std::net::SocketAddr;

const WATCH_NOT_ALLOWED: &[u8] = b"CLIENT_ERROR watch commands not allowed\r\n";
const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
const DUMP_NOT_ALLOWED: &[u8] = b"ERROR metadump not allowed\r\n";

/// Executes `verbosity`.
pub(super) fn verbosity(executor: &mut Executor<'_>, command: &Verbosity) {
    executor.shared.logging.set(u8::try_from(command.level).unwrap_or(u8::MAX).min(2));
    executor.reply_unless(command.noreply, reply::OK);
}

/// Executes all other administrative commands.
pub(super) fn execute(executor: &mut Executor<'_>, command: &Admin<'_>) -> Next {
    let tokens = &command.tokens;
    let words: &[u8] = match command.verb {
        Verb::CacheMemlimit => memory_limit(executor, tokens),
        Verb::Shutdown => match shutdown(executor, tokens) {
            Ok(()) => return Next::Close,
            Err(words) => words,
        },
        Verb::Slabs => slabs(executor, tokens),
        Verb::Lru => lru(executor, tokens),
        Verb::LruCrawler => match lru_crawler(executor, tokens) {
            Ok(kind) => {
                executor.reply(reply::OK);
                return Next::Dump(Dump { kind, cursor: ScanCursor::default() });
            }
            Err(words) => words,
        },
        Verb::Watch => match watch(executor, tokens) {
            Ok(kinds) => return Next::Watch(kinds),
            Err(words) => words,
        },
        Verb::DebugTime => debug_time(executor, tokens),
        // A usual build of memcached gives the same reply, because it lacks these commands or the
        // features that they need.
        Verb::RefreshCerts => {
            // This reads files and verifies keys, so it is costly.
            executor.work.use_up();
            match refresh_certificates(executor.shared) {
                None => b"Error TLS not enabled\r\n",
                Some(Ok(())) => reply::OK,
                Some(Err(error)) => {
                    executor.out.bytes.extend_from_slice(format!("{error}\r\n").as_bytes());
                    return Next::Continue;
                }
            }
        }
        Verb::Config => match cluster_reply(executor, tokens) {
            Ok(bytes) => {
                if !command.noreply {
                    executor.out.bytes.extend_from_slice(&bytes);
                }
                return Next::Continue;
            }
            Err(words) => words,
        },
        Verb::Extstore | Verb::DebugItem | Verb::Misbehave => reply::ERROR,
    };
    executor.reply_unless(command.noreply, words);
    Next::Continue
}

/// Returns the word at `index` as a number, parsed as administrative commands parse numbers.
fn number_u32(tokens: &Tokens<'_>, index: usize) -> Option<u32> {
    tokens.get(index).and_then(number::token_u32)
}

fn number_f64(tokens: &Tokens<'_>, index: usize) -> Option<f64> {
    std::str::from_utf8(tokens.get(index)?).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

fn memory_limit(executor: &Executor<'_>, tokens: &Tokens<'_>) -> &'static [u8] {
    match number_u32(tokens, 1) {
        None => reply::ERROR,
        Some(0..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
        Some(limit) if limit as usize == executor.shared.settings.memory_bytes >> 20 => reply::OK,
        // The arena's address range is fixed at startup.
        Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
    }
}

fn shutdown(executor: &Executor<'_>, tokens: &Tokens<'_>) -> Result<(), &'static [u8]> {
    if !executor.shared.live.shutdown_command() {
        return Err(reply::SHUTDOWN_NOT_ENABLED);
    }
    if tokens.len() == 1 || tokens.len() == 2 && tokens.get(1) == Some(b"graceful") {
        tracing::info!("a client has requested shutdown");
        executor.shared.drain.request();
        return Ok(());
    }
    Err(reply::INVALID_SHUTDOWN_MODE)
}

/// Executes `slabs`: there are no slabs, so no class ever has a spare page.
fn slabs(executor: &Executor<'_>, tokens: &Tokens<'_>) -> &'static [u8] {
    if tokens.len() == 4 && tokens.is_prefix_of(1, "reassign") {
        let class = |index| tokens.get(index).and_then(number::token_i32);
        return match (class(2), class(3)) {
            (Some(from), Some(to)) if from == to => b"SAME src and dst class are identical\r\n",
            (Some(from), Some(to)) => {
                let known = |class: i32| (0..=executor.shared.size_classes.largest() as i32).contains(&class);
                // The value -1 means any source.
                if (from == -1 || known(from)) && known(to) {
                    b"NOSPARE source class has no spare pages\r\n"
                } else {
                    b"BADCLASS invalid src or dst class id\r\n"
                }
            }
            _ => reply::BAD_FORMAT,
        };
    }
    if tokens.len() < 3 || !tokens.is_prefix_of(1, "automove") {
        return reply::ERROR;
    }
    if tokens.is_prefix_of(2, "ratio") || tokens.is_prefix_of(2, "freeratio") {
        return if number_f64(tokens, 3).is_some() { reply::OK } else { reply::ERROR };
    }
    if tokens.is_prefix_of(2, "window") {
        return match number_u32(tokens, 3) {
            Some(3..=1800) => reply::OK,
            Some(_) => b"CLIENT_ERROR automove window too low or too high\r\n",
            None => reply::BAD_FORMAT,
        };
    }
    match number_u32(tokens, 2) {
        Some(0..=2) => reply::OK,
        Some(_) => reply::ERROR,
        None => reply::BAD_FORMAT,
    }
}

/// Executes `lru`, which changes settings of memcached's LRU; only `stats settings` shows them.
fn lru(executor: &Executor<'_>, tokens: &Tokens<'_>) -> &'static [u8] {
    let mut inert = executor.shared.inert.lock();
    if tokens.is_prefix_of(1, "tune") && tokens.len() >= 6 {
        let (Some(hot), Some(warm)) = (number_u32(tokens, 2), number_u32(tokens, 3)) else {
            return reply::ERROR;
        };
        let (Some(hot_factor), Some(factor)) = (number_f64(tokens, 4), number_f64(tokens, 5)) else {
            return reply::ERROR;
        };
        if hot.saturating_add(warm) > 80 {
            return b"ERROR hot and warm pcts must not exceed 80\r\n";
        }
        if factor <= 0.0 || hot_factor <= 0.0 {
            return b"ERROR hot/warm age factors must be greater than 0\r\n";
        }
        inert.hot_lru_pct = hot;
        inert.warm_lru_pct = warm;
        inert.hot_max_factor = hot_factor;
        inert.warm_max_factor = factor;
        return reply::OK;
    }
    if tokens.is_prefix_of(1, "mode") && tokens.len() >= 3 {
        let segmented = match tokens.get(2) {
            Some(b"flat") => false,
            Some(b"segmented") => true,
            _ => return reply::ERROR,
        };
        inert.lru_segmented = segmented;
        return reply::OK;
    }
    if tokens.is_prefix_of(1, "temp_ttl") && tokens.len() >= 3 {
        let Some(ttl) = tokens.get(2).and_then(number::token_i32) else { return reply::ERROR };
        inert.temp_lru = ttl >= 0;
        if let Ok(ttl) = u32::try_from(ttl) {
            inert.temporary_ttl = ttl;
        }
        return reply::OK;
    }
    reply::ERROR
}

/// Executes `lru_crawler`: the engine finds expired items without a crawler, and dumps do not need
/// one either. Returns the dump to begin, or a reply.
fn lru_crawler(executor: &Executor<'_>, tokens: &Tokens<'_>) -> Result<DumpKind, &'static [u8]> {
    // The order matters: a word may be a prefix of several names.
    if tokens.len() == 3
        && let Some(walk) =
            ["crawl", "metadump", "mgdump"].into_iter().find(|name| tokens.is_prefix_of(1, name))
    {
        if !executor.shared.inert.lock().lru_crawler {
            return Err(b"CLIENT_ERROR lru crawler disabled\r\n");
        }
        let known = tokens.get(2).is_some_and(size_classes::is_known);
        return match walk {
            "metadump" => dump(executor, known, DumpKind::Attributes),
            "mgdump" => dump(executor, known, DumpKind::Requests),
            _ if known => Err(reply::OK),
            _ => Err(BAD_CLASS),
        };
    }
    Err(crawler_setting(executor, tokens))
}

/// Returns the dump to begin, or a reply if dumps are forbidden. As in memcached, the command must
/// be the first of its batch.
fn dump(executor: &Executor<'_>, is_known: bool, kind: DumpKind) -> Result<DumpKind, &'static [u8]> {
    let words: [&[u8]; 2] = match kind {
        DumpKind::Attributes => {
            [DUMP_NOT_ALLOWED, b"ERROR cannot pipeline other commands before metadump\r\n"]
        }
        DumpKind::Requests | DumpKind::Class { .. } => {
            [b"ERROR key dump not allowed\r\n", b"ERROR cannot pipeline other commands before mgdump\r\n"]
        }
    };
    if !executor.shared.live.dump_commands() {
        Err(words[0])
    } else if executor.follows() {
        Err(words[1])
    } else if !is_known {
        Err(BAD_CLASS)
    } else {
        Ok(kind)
    }
}

fn crawler_setting(executor: &Executor<'_>, tokens: &Tokens<'_>) -> &'static [u8] {
    let mut inert = executor.shared.inert.lock();
    if tokens.len() == 3 {
        if tokens.is_prefix_of(1, "tocrawl") {
            let Some(count) = number_u32(tokens, 2) else { return reply::BAD_FORMAT };
            inert.lru_crawler_tocrawl = count;
            return reply::OK;
        }
        if tokens.is_prefix_of(1, "sleep") {
            return match number_u32(tokens, 2) {
                Some(micros @ 0..=1_000_000) => {
                    inert.lru_crawler_sleep = micros;
                    reply::OK
                }
                Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
                None => reply::BAD_FORMAT,
            };
        }
    }
    if tokens.len() == 2 && tokens.is_prefix_of(1, "enable") {
        let runs = std::mem::replace(&mut inert.lru_crawler, true);
        return if runs { b"ERROR failed to start lru crawler thread\r\n" } else { reply::OK };
    }
    if tokens.len() == 2 && tokens.is_prefix_of(1, "disable") {
        inert.lru_crawler = false;
        return reply::OK;
    }
    reply::ERROR
}

/// Executes `watch`: returns the kinds of events to which the client subscribes.
fn watch(executor: &Executor<'_>, tokens: &Tokens<'_>) -> Result<u32, &'static [u8]> {
    if !executor.shared.live.watch_command() {
        return Err(WATCH_NOT_ALLOWED);
    }
    if executor.follows() {
        return Err(b"ERROR cannot pipeline other commands before watch\r\n");
    }
    if tokens.len() == 1 {
        return Ok(FETCHERS);
    }
    let kind = |index| {
        let found = EVENT_NAMES.iter().find(|(name, _)| tokens.is_prefix_of(index, name));
        found.map(|(_, kind)| *kind)
    };
    (1..tokens.len()).try_fold(0, |all, index| Some(all | kind(index)?)).ok_or(reply::ERROR)
}

impl Executor<'_> {
    /// Returns whether the request follows others of the same batch.
    fn follows(&self) -> bool {
        !self.out.is_empty() || self.out.follows
    }

    /// Replies to a client that cannot watch.
    #[cold]
    pub(crate) fn refuse_watcher(&mut self, refused: Refused) {
        self.reply(match refused {
            Refused::TooMany => b"WATCHER_TOO_MANY log watcher limit reached\r\n",
            Refused::Failed => b"WATCHER_FAILED failed to add log watcher\r\n",
            Refused::NotAllowed => WATCH_NOT_ALLOWED,
        });
    }

    /// Removes the `OK` of a dump that was about to begin, and refuses the dump.
    #[cold]
    pub(crate) fn refuse_dump(&mut self) {
        let before = self.out.bytes.len().saturating_sub(reply::OK.len());
        self.out.bytes.truncate(before);
        self.reply(DUMP_NOT_ALLOWED);
    }
}

/// Executes `debugtime`: pauses the clock, resumes it, or moves it by a number of seconds; in debug
/// builds it also injects faults. The command is for tests, and exists only with `--debug-clock`.
fn debug_time(executor: &Executor<'_>, tokens: &Tokens<'_>) -> &'static [u8] {
    let shared = executor.shared;
    if !shared.settings.debug_clock || tokens.len() < 2 {
        return reply::ERROR;
    }
    if tokens.get(1).is_some_and(|word| shared.faults.inject(word)) {
        return reply::OK;
    }
    if tokens.is_prefix_of(1, "p") {
        shared.clock.pause(true);
    } else if tokens.is_prefix_of(1, "r") {
        shared.clock.pause(false);
    } else {
        let Some(secs) = tokens.get(1).and_then(number::token_i32) else { return reply::ERROR };
        shared.clock.shift(secs);
    }
    reply::OK
}

// `config get cluster`: to clients that discover the nodes of a cluster, this server presents all
// nodes of its ring or, without a ring, itself.

const NO_ADDRESS: &[u8] =
    b"SERVER_ERROR no address is known to the client: set cluster_discovery to HOST:PORT\r\n";

/// Returns the reply, or the text of an error.
fn cluster_reply(executor: &Executor<'_>, tokens: &Tokens<'_>) -> Result<Vec<u8>, &'static [u8]> {
    let is_known = tokens.len() == 3 && tokens.get(1) == Some(b"get") && tokens.get(2) == Some(b"cluster");
    let discovery = &executor.shared.settings.cluster_discovery;
    if !is_known || *discovery == Discovery::Off {
        // memcached gives this reply.
        return Err(reply::ERROR);
    }
    if let Some(ring) = &executor.shared.ring {
        let map = ring.map();
        let nodes = map.nodes().iter().filter_map(|node| host_and_port(&node.address));
        let nodes = nodes.map(|(host, port)| (host, host.parse().ok(), port));
        return Ok(encode_cluster(map.version(), nodes));
    }
    let reached = reached(executor).or_else(|| listener(executor));
    let (host, ip, port) = match discovery {
        Discovery::Address { host, port } => {
            let ip = match host.parse() {
                Ok(ip) => Some(ip),
                Err(_) => reached.map(|address| address.ip()),
            };
            (host.clone(), ip, *port)
        }
        _ => {
            let address = reached.ok_or(NO_ADDRESS)?;
            (address.ip().to_string(), Some(address.ip()), address.port())
        }
    };
    // The version increases with every start, so that clients read the list again, which may have
    // changed.
    Ok(encode_cluster(executor.shared.clock.started_unix_secs(), [(&*host, ip, port)]))
}

/// Returns the server address to which the client is connected.
fn reached(executor: &Executor<'_>) -> Option<SocketAddr> {
    let all = executor.shared.connections.snapshot();
    match &all.iter().find(|info| info.fd == executor.client)?.endpoints {
        Endpoints::Tcp { local, .. } => local.map(canonical),
        Endpoints::Unix { .. } | Endpoints::Udp { .. } => None,
    }
}

/// Returns the address of a TCP listener that is bound to a specific address, if there is one. This
/// is for clients of the unix socket and for datagrams.
fn listener(executor: &Executor<'_>) -> Option<SocketAddr> {
    executor.shared.listeners.get()?.iter().find_map(|listener| match listener.endpoints {
        Endpoints::Tcp { peer, .. } if !peer.ip().is_unspecified() => Some(canonical(peer)),
        _ => None,
    })
}

/// Converts the IPv4-mapped address of a dual-stack listener to an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
