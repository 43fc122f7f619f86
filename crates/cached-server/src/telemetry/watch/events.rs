//! The kinds of events that can be observed: one bit each, in one word for the whole server.

/// Counting by key prefix (`stats detail on`).
pub(crate) const DETAIL: u32 = 1;
/// `watch evictions`.
pub(crate) const EVICTIONS: u32 = 1 << 1;
/// `watch fetchers`.
pub(crate) const FETCHERS: u32 = 1 << 2;
/// `watch mutations`.
pub(crate) const MUTATIONS: u32 = 1 << 3;
/// `watch connevents`.
pub(crate) const CONNEVENTS: u32 = 1 << 4;
/// `watch deletions`.
pub(crate) const DELETIONS: u32 = 1 << 5;
/// Kinds without events in this server: `rawcmds`, `sysevents`, and those of memcached's proxy.
pub(crate) const NOTHING: u32 = 1 << 6;

/// All kinds that `watch` accepts.
pub(crate) const KINDS: u32 = EVICTIONS | FETCHERS | MUTATIONS | CONNEVENTS | DELETIONS | NOTHING;

/// The names that `watch` accepts. A word may be a prefix, as in memcached; the first name that fits is
/// taken.
pub(crate) const NAMES: [(&str, u32); 10] = [
    ("rawcmds", NOTHING),
    ("evictions", EVICTIONS),
    ("fetchers", FETCHERS),
    ("mutations", MUTATIONS),
    ("sysevents", NOTHING),
    ("connevents", CONNEVENTS),
    ("proxyreqs", NOTHING),
    ("proxyevents", NOTHING),
    ("proxyuser", NOTHING),
    ("deletions", DELETIONS),
];
