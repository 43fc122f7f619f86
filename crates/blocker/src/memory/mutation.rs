//! The contract's rules that the memory backend can break in tests.
//!
//! For each rule the conformance suite must fail on a backend that breaks it; otherwise the suite
//! does not check the rule. Outside this crate's tests no rule is ever broken.

macro_rules! mutations {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Mutation { $($name,)* }

        #[cfg(test)]
        pub(crate) const ALL: &[Mutation] = &[$(Mutation::$name,)*];
    };
}

mutations! {
    // Content.
    ReadPastEndPadded,
    ReadConditionIgnored,
    HolesNotZero,
    EmptyWriteIgnored,
    EmptyWriteExtends,
    ZeroesNeverExtend,
    RunsLastIgnored,
    RunsZeroesIgnored,
    RunsGapsZeroed,
    DiscardExtends,
    DiscardKeepsBytes,
    CompareIgnored,
    MismatchWrites,
    MismatchOffsetRelative,
    FullWriteKeepsTail,
    TruncateCreates,
    TruncateNeverShrinks,
    TruncateRevealsOld,
    DeleteOfMissingWorks,
    CopyKeepsTail,
    CopyMoves,
    CopyTakesStamp,
    InfoRounded,
    // Names and listing.
    NamespacesMixed,
    ListUnordered,
    ListRepeats,
    ListStopsEarly,
    ListPrefixIgnored,
    // Conditions and versions.
    VersionConditionIgnored,
    AbsentConditionIgnored,
    PresentConditionIgnored,
    ConditionCheckedTooEarly,
    VersionKept,
    VersionReusedAfterDelete,
    // Fencing.
    ClaimIgnored,
    ClaimLowers,
    ClaimShared,
    EpochStepIgnored,
    DomainClaimIgnored,
    UnstampedNeverFenced,
    StampEpochIgnored,
    SequenceIgnored,
    StampNotKept,
    TombstoneForgotten,
    RunsUnfenced,
    TruncateUnfenced,
    DeleteUnfenced,
    CopyUnfenced,
    // Atomicity, limits, deadlines, events, capabilities.
    WriteTorn,
    RunsTorn,
    RunsUnchecked,
    RunsOverstated,
    LimitOffByOne,
    LimitOverstated,
    CompareOverstated,
    DeadlineIgnored,
    DurabilityUnderstated,
    ClaimSilent,
    InvalidateSilent,
}

/// The rule that a backend breaks, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken(#[cfg(test)] Option<Mutation>);

impl Broken {
    #[cfg(test)]
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }

    /// Outside tests no rule is ever broken.
    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn is(self, _: Mutation) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::conformance::{Options, Plain, run};
    use crate::memory::Memory;

    #[test]
    fn the_suite_notices_every_broken_rule() {
        let mut unnoticed = Vec::new();
        for mutation in ALL {
            let mut options = Options::default();
            if matches!(mutation, Mutation::ClaimSilent | Mutation::InvalidateSilent) {
                // Detected by missing events.
                options.filter = "events::subscribers_receive".into();
                options.timeout = Duration::from_secs(2);
            }
            let report = run(&Plain::new(Arc::new(Memory::broken(Broken(Some(*mutation))))), &options);
            match report.failures().next() {
                Some(failure) => println!("{mutation:?}: {} ({failure})", failure.name),
                None => unnoticed.push(mutation),
            }
        }
        assert!(unnoticed.is_empty(), "the suite passes although these rules are broken: {unnoticed:?}");
    }

    #[test]
    fn the_suite_passes_where_no_rule_is_broken() {
        let memory = Arc::new(Memory::default());
        run(&Plain::new(Arc::clone(&memory) as _), &Options::default()).assert_passed();
        memory.model.lock().validate();
    }
}
