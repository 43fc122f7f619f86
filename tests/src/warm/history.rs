//! The clients' knowledge of each key, and the key's possible states after a restart.

/// The visible state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The value.
    pub value: Vec<u8>,
    /// The client flags.
    pub flags: u32,
    /// Whether the item expires: the tests use either no time to live or one of hours.
    pub expires: bool,
    /// Whether the item is marked stale.
    pub stale: bool,
    /// The CAS value, if known.
    pub cas: Option<u64>,
}

impl Seen {
    /// Returns whether both states are equal, as far as the CAS values are known.
    pub fn is(&self, other: &Seen) -> bool {
        let cas = self.cas.zip(other.cas).is_none_or(|(own, other)| own == other);
        cas && (&self.value, self.flags, self.expires, self.stale)
            == (&other.value, other.flags, other.expires, other.stale)
    }
}

/// An acknowledged change.
#[derive(Clone, Debug)]
pub struct Change {
    /// When the change was sent and acknowledged, on a counter shared by all clients.
    pub sent: u64,
    /// See `sent`.
    pub acknowledged: u64,
    /// The key's new state; `None` if it was removed.
    pub result: Option<Seen>,
}

/// A change that was sent and not acknowledged, with the key's possible new states.
#[derive(Clone, Debug)]
pub struct Pending {
    /// All possible results of the change, including a partial one with only some attributes
    /// applied.
    pub results: Vec<Option<Seen>>,
}

/// A `flush_all`.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    /// When the flush was sent, on the counter shared by all clients.
    pub sent: u64,
    /// When the flush was acknowledged; `None` if it was not.
    pub acknowledged: Option<u64>,
}

/// Whether a key was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The key was not flushed.
    No,
    /// The key may have been flushed.
    Perhaps,
    /// The key was flushed after its last acknowledged change.
    Yes,
}

impl Change {
    /// Returns whether a flush has removed the item of a change.
    pub fn flushed(&self, flushes: &[Flush]) -> Flushed {
        let of = |flush: &Flush| match flush.acknowledged {
            Some(acknowledged) if acknowledged < self.sent => Flushed::No,
            Some(_) if self.acknowledged < flush.sent => Flushed::Yes,
            _ => Flushed::Perhaps,
        };
        let all: Vec<Flushed> = flushes.iter().map(of).collect();
        if all.contains(&Flushed::Yes) {
            Flushed::Yes
        } else if all.contains(&Flushed::Perhaps) {
            Flushed::Perhaps
        } else {
            Flushed::No
        }
    }
}

/// The verdict on a key's state after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The last acknowledged state.
    Acknowledged,
    /// The state after an unacknowledged change.
    Unacknowledged,
    /// The key is missing because of a flush.
    MissingFlushed,
    /// The key is missing because of a change in progress.
    MissingUnderWay,
    /// The key is missing without an explanation.
    MissingLost,
    /// The key has an impossible state.
    Wrong,
}

/// Judges the state of a key after a restart.
pub fn judge(
    last: Option<&Change>,
    pending: Option<&Pending>,
    flushes: &[Flush],
    found: Option<&Seen>,
) -> Verdict {
    let flushed = last.map_or(Flushed::No, |change| change.flushed(flushes));
    let acknowledged = last.and_then(|change| change.result.as_ref());
    let is_pending = pending.is_some_and(|pending| {
        pending.results.iter().flatten().any(|result| found.is_some_and(|seen| seen.is(result)))
    });
    match found {
        Some(seen) if acknowledged.is_some_and(|state| seen.is(state)) && flushed != Flushed::Yes => {
            Verdict::Acknowledged
        }
        Some(_) if is_pending => Verdict::Unacknowledged,
        Some(_) => Verdict::Wrong,
        None if acknowledged.is_none() => Verdict::Acknowledged,
        None if flushed != Flushed::No => Verdict::MissingFlushed,
        None if pending.is_some() => Verdict::MissingUnderWay,
        None => Verdict::MissingLost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(value: &str) -> Seen {
        Seen { value: value.into(), flags: 0, expires: false, stale: false, cas: None }
    }

    #[test]
    fn a_key_is_judged_by_what_was_acknowledged() {
        let (old, new) = (seen("old"), seen("new"));
        let change = Change { sent: 10, acknowledged: 20, result: Some(old.clone()) };
        let pending = Pending { results: vec![Some(new.clone())] };
        let judge = |pending, flushes: &[Flush], found| judge(Some(&change), pending, flushes, found);
        assert_eq!(judge(None, &[], Some(&old)), Verdict::Acknowledged);
        assert_eq!(judge(None, &[], Some(&new)), Verdict::Wrong);
        assert_eq!(judge(None, &[], None), Verdict::MissingLost);
        assert_eq!(judge(Some(&pending), &[], Some(&new)), Verdict::Unacknowledged);
        assert_eq!(judge(Some(&pending), &[], None), Verdict::MissingUnderWay);
        let flush = |sent, acknowledged| [Flush { sent, acknowledged }];
        assert_eq!(judge(None, &flush(30, Some(40)), Some(&old)), Verdict::Wrong, "it was flushed");
        assert_eq!(judge(None, &flush(30, Some(40)), None), Verdict::MissingFlushed);
        assert_eq!(judge(None, &flush(15, Some(40)), Some(&old)), Verdict::Acknowledged);
        assert_eq!(judge(None, &flush(30, None), Some(&old)), Verdict::Acknowledged);
        assert_eq!(judge(None, &flush(1, Some(5)), None), Verdict::MissingLost, "the flush was before");
        let other_cas = Seen { cas: Some(2), ..old.clone() };
        assert!(old.is(&other_cas) && !Seen { cas: Some(1), ..old.clone() }.is(&other_cas));
    }
}
