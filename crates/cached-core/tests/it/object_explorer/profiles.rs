//! The operations, faults and sizes that are enabled in a run. A defect that hides behind others is
//! found by leaving out the causes of the others.

use blocker::WriteMode;
use cached_core::object::Writer;

/// An operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Writes of whole buckets.
    Aligned,
    /// Writes of any cells.
    Unaligned,
    /// Writes of whole sectors.
    Sectors,
    Zeroes,
    Runs,
    Truncate,
    Discard,
    Full,
    Compare,
    Copy,
    Delete,
    Read,
    Info,
    FlushObject,
    FlushDomain,
    FlushNamespace,
    FlushAll,
    Invalidate,
}

/// A set of enabled features.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    pub asks: &'static [(Ask, u64)],
    pub policies: &'static [WriteMode],
    pub writer: Writer,
    pub caches: usize,
    pub objects: (u64, u64),
    pub namespaces: u64,
    /// The minimum and maximum number of nodes of the index.
    pub places: (u64, u64),
    /// The minimum and maximum number of buckets that no slow reader holds.
    pub buckets: (u64, u64),
    /// The longest object, in buckets.
    pub size_buckets: u32,
    pub clients: u64,
    /// The number of changes in a thousand that require the durability *stored*.
    pub stored: u64,
    /// The number of changes in a thousand that belong to one of two order domains.
    pub domains: u64,
    /// The number of events per thousand operations: requests that fail …
    pub retryable: u64,
    /// … that lose their response …
    pub unknown: u64,
    /// … requests with a failing sync …
    pub failed_sync: u64,
    /// … operations that their callers cancel …
    pub cancels: u64,
    /// … changes by another client …
    pub another: u64,
    /// Whether other clients do nothing but delete objects.
    pub another_deletes: bool,
    /// … claims by another writer, of objects, domains and namespaces …
    pub claims: u64,
    /// … and events that report a change that did not happen.
    pub rumours: u64,
    /// … and changes of a namespace's write mode.
    pub mode_changes: u64,
    /// The store's maximum request size in buckets (0: no limit), and its maximum number of runs.
    pub request_buckets: &'static [u64],
    pub runs_max: &'static [u32],
    /// The maximum of clean bytes between dirty runs that may be written with the runs.
    pub gap_bytes: &'static [u64],
    /// Whether the store stores durably only what a request requires.
    pub is_volatile: bool,
    /// The number of operations of one run.
    pub operations: u64,
    /// Whether zeros and truncations count towards the limit of losses.
    pub checks_stake: bool,
    /// Whether all objects exist from the beginning, with their maximum size.
    pub is_prefilled: bool,
    /// Whether objects are flushed one by one before the comparison of the idle cache with the
    /// store.
    pub flushes_objects: bool,
}

use Ask::*;
use WriteMode::{Around, Back, Through};

const ALL: &[(Ask, u64)] = &[
    (Aligned, 6),
    (Unaligned, 14),
    (Zeroes, 4),
    (Runs, 4),
    (Truncate, 6),
    (Discard, 3),
    (Full, 3),
    (Compare, 4),
    (Copy, 4),
    (Delete, 3),
    (Read, 14),
    (Info, 2),
    (FlushObject, 4),
    (FlushDomain, 1),
    (FlushNamespace, 1),
    (FlushAll, 1),
    (Invalidate, 1),
];

const WRITES: &[(Ask, u64)] = &[(Aligned, 4), (Unaligned, 20), (Read, 16), (FlushObject, 6), (FlushAll, 1)];

const EVICTED: &[(Ask, u64)] = &[(Aligned, 2), (Unaligned, 16), (Read, 20), (FlushObject, 10)];

const CUTS: &[(Ask, u64)] =
    &[(Aligned, 3), (Unaligned, 5), (Truncate, 12), (Read, 16), (FlushObject, 8), (FlushAll, 1)];

const SHARED: &[(Ask, u64)] =
    &[(Aligned, 5), (Sectors, 14), (Read, 16), (FlushObject, 5), (FlushAll, 1), (Invalidate, 2)];

const SPREAD: &[(Ask, u64)] = &[(Aligned, 8), (Sectors, 14), (Read, 8), (FlushObject, 2)];

const FENCED: &[(Ask, u64)] = &[
    (Aligned, 6),
    (Unaligned, 8),
    (Zeroes, 2),
    (Truncate, 2),
    (Read, 8),
    (Full, 1),
    (FlushObject, 3),
    (FlushDomain, 3),
    (FlushNamespace, 3),
    (FlushAll, 3),
    (Invalidate, 1),
];

const FENCED_OBJECTS: &[(Ask, u64)] =
    &[(Aligned, 6), (Unaligned, 8), (Zeroes, 2), (Truncate, 2), (Read, 8), (FlushObject, 6)];

const ZEROS: &[(Ask, u64)] = &[(Zeroes, 10), (Truncate, 4), (Discard, 4), (Full, 6), (Delete, 3), (Read, 3)];

const COPIES: &[(Ask, u64)] =
    &[(Aligned, 8), (Unaligned, 8), (Full, 3), (Copy, 14), (Delete, 2), (Read, 10), (FlushObject, 3)];

fn base() -> Profile {
    Profile {
        name: "all",
        asks: ALL,
        policies: &[Back],
        writer: Writer::Callers,
        caches: 1,
        objects: (1, 3),
        namespaces: 1,
        places: (8, 16),
        buckets: (4, 16),
        size_buckets: 4,
        clients: 4,
        stored: 80,
        domains: 0,
        retryable: 0,
        unknown: 0,
        failed_sync: 0,
        cancels: 0,
        another: 0,
        another_deletes: false,
        claims: 0,
        rumours: 0,
        mode_changes: 0,
        request_buckets: &[0],
        runs_max: &[1024, 0],
        gap_bytes: &[0],
        is_volatile: false,
        operations: 60,
        checks_stake: false,
        is_prefilled: false,
        flushes_objects: false,
    }
}

/// Returns all profiles, the narrow ones first.
pub fn profiles() -> Vec<Profile> {
    vec![
        Profile { name: "writes", asks: WRITES, objects: (2, 4), buckets: (4, 8), ..base() },
        Profile {
            name: "bridges",
            asks: WRITES,
            gap_bytes: &[65536],
            objects: (2, 4),
            buckets: (4, 8),
            ..base()
        },
        Profile {
            name: "evictions",
            asks: EVICTED,
            gap_bytes: &[0, 65536],
            objects: (3, 4),
            buckets: (8, 14),
            stored: 0,
            ..base()
        },
        Profile { name: "cuts", asks: CUTS, objects: (1, 1), buckets: (12, 24), size_buckets: 2, ..base() },
        Profile { name: "copies", asks: COPIES, objects: (2, 4), places: (2, 4), ..base() },
        Profile { name: "roomy", buckets: (32, 64), ..base() },
        Profile { name: "back", gap_bytes: &[0, 65536], ..base() },
        Profile { name: "pieces", request_buckets: &[1, 2], gap_bytes: &[0, 65536], ..base() },
        Profile { name: "few-places", objects: (3, 6), places: (2, 3), namespaces: 2, ..base() },
        Profile { name: "through", policies: &[Through, Around], ..base() },
        Profile { name: "through-writes", policies: &[Through, Around], asks: WRITES, ..base() },
        Profile {
            name: "stamped-through",
            policies: &[Through, Around],
            writer: Writer::Cache,
            asks: SPREAD,
            objects: (1, 2),
            ..base()
        },
        Profile { name: "stamped-back", writer: Writer::Cache, ..base() },
        Profile {
            name: "mixed",
            policies: &[Back, Through, Around],
            namespaces: 2,
            objects: (2, 4),
            ..base()
        },
        Profile {
            name: "switched",
            policies: &[Back, Through, Around],
            mode_changes: 150,
            objects: (1, 3),
            ..base()
        },
        Profile { name: "cancels", cancels: 200, policies: &[Back, Through], ..base() },
        Profile { name: "failing", retryable: 300, unknown: 200, policies: &[Back, Through], ..base() },
        Profile { name: "failed-syncs", failed_sync: 60, is_volatile: true, ..base() },
        Profile { name: "volatile", is_volatile: true, policies: &[Back, Through], domains: 500, ..base() },
        Profile {
            name: "fenced",
            asks: FENCED,
            claims: 50,
            objects: (2, 4),
            namespaces: 2,
            buckets: (12, 32),
            places: (6, 12),
            ..base()
        },
        Profile {
            name: "fenced-domains",
            asks: FENCED,
            claims: 50,
            domains: 900,
            objects: (1, 3),
            buckets: (12, 32),
            ..base()
        },
        Profile {
            name: "fenced-rumours",
            asks: FENCED_OBJECTS,
            flushes_objects: true,
            claims: 50,
            rumours: 200,
            objects: (2, 3),
            buckets: (12, 32),
            ..base()
        },
        Profile {
            name: "fenced-places",
            asks: FENCED_OBJECTS,
            flushes_objects: true,
            claims: 50,
            objects: (3, 6),
            namespaces: 2,
            places: (2, 3),
            buckets: (12, 32),
            ..base()
        },
        Profile { name: "deposed", writer: Writer::Cache, asks: FENCED, claims: 50, namespaces: 2, ..base() },
        Profile {
            name: "two-caches",
            writer: Writer::Cache,
            caches: 2,
            asks: SPREAD,
            policies: &[Back, Through],
            objects: (1, 2),
            ..base()
        },
        Profile {
            name: "shared",
            asks: SHARED,
            another: 250,
            is_prefilled: true,
            objects: (1, 2),
            buckets: (12, 32),
            ..base()
        },
        Profile {
            name: "shared-bridges",
            asks: SHARED,
            another: 250,
            is_prefilled: true,
            objects: (1, 2),
            buckets: (12, 32),
            gap_bytes: &[65536],
            ..base()
        },
        Profile {
            name: "shared-through",
            asks: SHARED,
            policies: &[Through],
            another: 250,
            is_prefilled: true,
            objects: (1, 2),
            buckets: (12, 32),
            ..base()
        },
        Profile {
            name: "gone-below",
            asks: WRITES,
            another: 150,
            another_deletes: true,
            objects: (1, 2),
            buckets: (12, 32),
            ..base()
        },
        Profile {
            name: "zeros",
            asks: ZEROS,
            objects: (2, 4),
            buckets: (12, 16),
            size_buckets: 12,
            checks_stake: true,
            ..base()
        },
    ]
}
