//! The conformance suite: checks any backend or layer against the contract.
//!
//! The suite uses only [`Blocker`] and no async runtime. It works in namespaces of its own and
//! leaves them empty, so it can run against a shared store on the network. Each case tests one
//! sentence of the contract; cases that the capabilities exclude are skipped with a reason. Power
//! loss is tested if the [`Harness`] can cut the power.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::conformance::{Options, Plain, run};
//!
//! let report = run(&Plain::new(Arc::new(blocker::Memory::default())), &Options::default());
//! report.assert_passed();
//! ```

mod cancel;
mod concurrent;
mod conditions;
mod content;
mod context;
mod crash;
mod events;
mod fencing;
mod limits;
mod listing;
mod names;
mod random;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Blocker, Clock, SystemClock};

use context::{Check, Cx, Stop};

/// The blocker under test, its clock, and a way to cut its power.
pub trait Harness {
    /// Returns the blocker under test. The suite calls this once for each case; it may return the
    /// same blocker or a fresh one.
    fn backend(&self) -> Arc<dyn Blocker>;

    /// Returns the clock of the blocker's deadlines.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Cuts the power of the blocker that [`Self::backend`] returned last, loses whatever the store
    /// is allowed to lose, and returns the restarted blocker. The default is `None`: the harness
    /// cannot cut the power, and cases that need this are skipped.
    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        None
    }
}

/// A harness for one blocker on the system's clock, whose power cannot be cut.
pub struct Plain(Arc<dyn Blocker>);

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}

impl Plain {
    /// Returns a harness that tests `backend`.
    #[must_use]
    pub fn new(backend: Arc<dyn Blocker>) -> Self {
        Self(backend)
    }
}

impl Harness for Plain {
    fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.0)
    }
}

/// The options of a run of the suite.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The seed of all random choices. The report contains the seed.
    pub seed: u64,
    /// The prefix of the suite's namespaces. Objects found there are removed.
    pub namespace_prefix: String,
    /// Only cases whose name contains this text run.
    pub filter: String,
    /// The time after which a missing reply counts as lost.
    pub timeout: Duration,
    /// The amount of random work: 1 takes a second or less on a fast backend.
    pub effort: u32,
    /// Whether the suite is the only user of the backend, so that it may claim scopes of all
    /// namespaces. Such claims are permanent.
    pub exclusive: bool,
    /// Whether the run ends with the first case that fails.
    pub fail_fast: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            namespace_prefix: "conformance".into(),
            filter: String::new(),
            // On a busy machine a flush of a layer that collects changes can take long.
            timeout: Duration::from_secs(240),
            effort: 1,
            exclusive: false,
            fail_fast: false,
        }
    }
}

/// One sentence of the contract, and the function that tests it.
struct Case {
    name: &'static str,
    check: fn(&Cx<'_>) -> Check,
}

macro_rules! cases {
    ($($module:ident: $($name:ident)+;)*) => {
        const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            check: $module::$name,
        },)+)*];
    };
}

cases! {
    content:
        an_absent_object_is_missing
        what_was_written_is_read
        a_read_stops_at_the_end
        holes_read_as_zeros
        an_empty_write_creates_but_never_extends
        unaligned_writes_touch_only_their_bytes
        write_zeroes_is_a_write_of_zeros
        runs_are_written_and_what_lies_between_stays
        discard_zeroes_and_keeps_the_size
        truncate_moves_the_end
        what_was_cut_off_never_comes_back
        write_full_replaces_everything
        delete_leaves_nothing
        copy_replaces_the_target_and_keeps_the_source
        copy_onto_itself_changes_no_byte
        compare_and_write_writes_only_if_equal
        payloads_of_many_segments_are_one_run
        info_is_exact;
    names:
        any_bytes_are_a_name
        names_are_never_folded
        namespaces_are_apart;
    conditions:
        every_change_gives_a_new_version
        a_version_is_never_used_twice
        if_version_guards_every_operation
        absent_and_present_guard_creation
        a_failed_change_changes_nothing
        reads_can_ask_for_a_version
        replies_give_the_durability_asked_for;
    fencing:
        stamps_rise_or_are_refused
        the_stamp_is_shown_and_kept
        older_epochs_are_refused_by_every_operation
        a_claim_refuses_older_epochs_in_its_scope_only
        a_claim_of_a_domain_binds_its_changes
        claims_never_fall
        an_epoch_in_force_is_refused_to_another_writer
        an_epoch_rises_by_limited_steps
        a_claim_of_everything_binds_everything
        a_deleted_object_is_not_brought_back_by_a_late_change
        copies_do_not_take_the_stamp_along;
    limits:
        an_object_may_be_as_large_as_the_limit
        one_byte_more_is_too_large
        overflowing_ranges_are_refused
        compare_works_up_to_its_limit
        runs_work_up_to_their_limit
        invalid_runs_are_refused
        what_is_not_supported_is_refused_as_such;
    listing:
        an_unused_namespace_is_empty
        a_listing_is_in_order_and_complete
        pages_join_without_gap_or_repeat
        a_prefix_selects
        objects_that_stay_are_listed_once_under_change;
    concurrent:
        a_bucket_is_never_seen_half_written
        runs_are_seen_all_or_none
        conditional_changes_lose_no_update
        compare_and_write_loses_no_update
        only_one_creator_wins
        objects_do_not_disturb_each_other;
    cancel:
        a_cancelled_change_is_all_or_nothing
        a_cancelled_call_blocks_no_other;
    events:
        a_deadline_in_the_past_changes_nothing
        a_deadline_far_away_changes_nothing
        subscribers_receive_invalidations
        subscribers_receive_claims
        flush_of_every_scope_answers_stored;
    random:
        any_sequence_matches_a_plain_map;
    crash:
        what_is_stored_survives
        a_flush_stores_what_was_acknowledged
        flushes_of_wider_scopes_store_it_too
        sectors_are_old_or_new
        generations_are_kept_in_order
        a_full_write_is_all_or_nothing
        removals_that_are_stored_stay
        claims_and_stamps_survive
        runs_are_stored_with_their_stamp
        versions_are_not_reused_after_a_crash;
}

/// The result of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The blocker keeps the contract.
    Pass,
    /// The case does not apply to this blocker, for the given reason.
    Skip(String),
    /// The blocker violates the contract in the given way.
    Fail(String),
}

/// One case and its result.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The name, as `theme::sentence`.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// The duration of the case.
    pub took: Duration,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Pass => write!(f, "pass {} ({} ms)", self.name, self.took.as_millis()),
            Verdict::Skip(why) => write!(f, "skip {}: {why}", self.name),
            Verdict::Fail(how) => write!(f, "FAIL {}: {how}", self.name),
        }
    }
}

/// The results of all cases that ran.
#[derive(Clone, Debug)]
pub struct Report {
    /// The cases, in the order in which they ran.
    pub cases: Vec<CaseReport>,
    /// The seed of the run.
    pub seed: u64,
}

impl Report {
    /// Returns the cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Fail(_)))
    }

    /// Returns the number of cases that passed, were skipped, and failed.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let failed = self.failures().count();
        let passed = self.cases.iter().filter(|case| case.verdict == Verdict::Pass).count();
        (passed, self.cases.len() - passed - failed, failed)
    }

    /// Checks that no case failed and at least one passed.
    ///
    /// # Panics
    /// Panics if a case failed, or none passed, with all failures and the seed.
    #[track_caller]
    pub fn assert_passed(&self) {
        let failures: Vec<_> = self.failures().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "seed {}:\n{}", self.seed, failures.join("\n"));
        assert!(self.counts().0 > 0, "no case ran");
    }
}

/// Runs the suite.
pub fn run(harness: &dyn Harness, options: &Options) -> Report {
    run_with(harness, options, |_| ())
}

/// Runs the suite, and calls `progress` with each case as soon as it is done.
pub fn run_with(harness: &dyn Harness, options: &Options, mut progress: impl FnMut(&CaseReport)) -> Report {
    let mut cases = Vec::new();
    for (index, case) in CASES.iter().enumerate().filter(|(_, case)| case.name.contains(&options.filter)) {
        let start = Instant::now();
        let verdict = run_case(harness, options, case, index);
        let report = CaseReport { name: case.name, verdict, took: start.elapsed() };
        progress(&report);
        let is_last = options.fail_fast && matches!(report.verdict, Verdict::Fail(_));
        cases.push(report);
        if is_last {
            break;
        }
    }
    Report { cases, seed: options.seed }
}

fn run_case(harness: &dyn Harness, options: &Options, case: &Case, index: usize) -> Verdict {
    let cx = Cx::new(harness, options, index);
    let checked = catch_unwind(AssertUnwindSafe(|| {
        cx.clean()?;
        (case.check)(&cx)?;
        cx.clean()
    }));
    match checked {
        Ok(Ok(())) => Verdict::Pass,
        Ok(Err(Stop::Skip(why))) => Verdict::Skip(why),
        Ok(Err(Stop::Fail(how))) => Verdict::Fail(how),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Verdict::Fail(format!("panicked: {}", text.unwrap_or("without words")))
        }
    }
}
