//! Sweeping a store on demand: what is to be removed, and what was found.

use std::time::Duration;

/// What a sweep is to remove.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SweepOptions {
    /// How old a left-over must be to be removed, on the clock of the store's server.
    pub age: Duration,
    /// Whether to count what would be removed, and to leave it.
    pub dry_run: bool,
}

impl SweepOptions {
    /// The least age that is safe beside programs that change the store: no writer waits longer between the bytes of a
    /// change and the record that names them.
    pub const AGE_MIN: Duration = Duration::from_secs(15 * 60);

    /// Returns the options of a sweep that removes what is older than `age`, or counts it if `dry_run`.
    #[must_use]
    pub fn new(age: Duration, dry_run: bool) -> Self {
        Self { age, dry_run }
    }
}

/// What a sweep has done so far or, if it was to leave everything, would have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SweepCounts {
    /// The number of blobs met.
    pub blobs: u64,
    /// The number of blobs removed, which no head names.
    pub orphans: u64,
    /// The bytes of those.
    pub orphans_bytes: u64,
    /// The number of heads met; 0 where the server cannot remove them on a condition.
    pub heads: u64,
    /// The number of heads of deleted objects removed.
    pub ghosts: u64,
    /// The number of heads of deleted objects that are old enough, and that something depends on.
    pub ghosts_kept: u64,
    /// Whether heads of deleted objects can be removed: the server keeps conditions of removals.
    pub ghosts_can_go: bool,
    /// The number of left-overs of probes removed.
    pub probes: u64,
}

#[cfg(feature = "s3")]
pub(crate) fn sweep(
    store: &blocker_s3::S3Store,
    options: &SweepOptions,
    watch: impl Fn(SweepCounts) + Send + Sync + 'static,
) -> blocker::Reply<SweepCounts> {
    let options = blocker_s3::SweepOptions::new(options.age).dry_run(options.dry_run);
    let swept = store.sweep_with(options, move |swept| watch(counts(swept)));
    swept.then(|swept| swept.map(|swept| counts(&swept)))
}

#[cfg(feature = "s3")]
fn counts(swept: &blocker_s3::Swept) -> SweepCounts {
    SweepCounts {
        blobs: swept.blobs,
        orphans: swept.removed,
        orphans_bytes: swept.removed_bytes,
        heads: swept.heads,
        ghosts: swept.forgotten,
        ghosts_kept: swept.kept,
        ghosts_can_go: swept.can_forget,
        probes: swept.probes,
    }
}
