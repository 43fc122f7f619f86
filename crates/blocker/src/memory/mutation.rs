//! Every rule of the contract, broken on purpose: the check on the checker.
//!
//! A test backend can be told to break one rule; the conformance suite must then fail. If it does not,
//! the rule is not checked. Outside tests nothing is ever broken.

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
    // Atomicity, limits, time, news, truth.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::conformance::{Options, Plain, run};
    use crate::memory::Memory;

    #[test]
    fn the_suite_notices_every_broken_rule() {
        let mut unnoticed = Vec::new();
        for mutation in ALL {
            let report = run(&Plain::new(Arc::new(Memory::broken(*mutation))), &Options::default());
            match report.failures().next() {
                Some(failure) => println!("{mutation:?}: {} ({failure})", failure.name),
                None => unnoticed.push(mutation),
            }
        }
        assert!(unnoticed.is_empty(), "the suite passes although these rules are broken: {unnoticed:?}");
    }

    #[test]
    fn nothing_is_noticed_where_nothing_is_broken() {
        let memory = Arc::new(Memory::default());
        run(&Plain::new(Arc::clone(&memory) as _), &Options::default()).assert_passed();
        memory.model.lock().validate();
    }
}
