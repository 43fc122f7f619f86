//! Election by a document that the leader renews by compare-and-set.
//!
//! The document names the leader and its epoch, and has a number that rises with each renewal.
//! Every write requires the revision that the host has read last, so of two hosts only one
//! succeeds, and a delayed write takes effect only if nobody has written since. A host that does
//! not know whether its write has taken effect reads the document; the lease then counts from
//! before the first of its equal attempts.

use std::time::Duration;

use blocker::{Epoch, Timestamp, WriterId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::tenure::{Claim, Leaderships};
use super::{Action, Claimed, LeaseRule, NEVER, Role, retry_delay};
use crate::document::{Expect, Revision};

/// A host that may lead.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// The host's name among the candidates.
    pub node: String,
    /// The address at which clients reach the host, for other hosts to read.
    pub address: String,
    /// The identity of this process in the election.
    pub writer: WriterId,
}

impl Candidate {
    /// Returns this candidate's document as the leader of `epoch`.
    pub(super) fn document(&self, epoch: u64, renewal: u64) -> LeaderDocument {
        let Self { node, address, writer } = self.clone();
        LeaderDocument { epoch, node, address, writer, renewal, release: None }
    }
}

/// The leader's document.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LeaderDocument {
    /// The epoch of this leadership.
    pub epoch: u64,
    /// The leader's name.
    pub node: String,
    /// The address at which clients reach the leader.
    pub address: String,
    /// The leader's identity.
    #[serde(with = "writer_text")]
    pub writer: WriterId,
    /// The number of the renewal.
    pub renewal: u64,
    /// Whether the leader has stepped down, and for whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
}

/// The successor of a leader that has stepped down.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Release {
    /// Any other host.
    Anyone,
    /// The host with this name. Other hosts wait until the lease has ended.
    To(String),
}

impl LeaderDocument {
    /// Returns the document's value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("texts and numbers are valid JSON").into()
    }

    /// Reads a document's value.
    ///
    /// # Errors
    /// Returns the reason why the value is not a leader's document.
    pub fn decode(value: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(value).map_err(|error| format!("the leader's document is malformed: {error}"))
    }
}

mod writer_text {
    use blocker::WriterId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(writer: &WriterId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(writer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WriterId, D::Error> {
        let text = String::deserialize(from)?;
        let writer = u128::from_str_radix(&text, 16);
        writer.map(WriterId).map_err(|_| D::Error::custom("the writer must be a hexadecimal number"))
    }
}

/// An operation on the leader's document.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum DocumentOp {
    /// Read the document, and call [`DocumentElection::read`] or [`DocumentElection::read_failed`].
    Read,
    /// Write the document if it still has the expected revision, and call
    /// [`DocumentElection::written`].
    Write(LeaderDocument, Expect),
}

/// The outcome of a write of the document.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Written {
    /// The document has this revision now.
    Done(Revision),
    /// The document has a revision other than the expected one.
    Conflict,
    /// The write may have taken effect, or may still take effect.
    Unknown,
    /// Nothing was changed.
    Failed,
}

/// A standby looks at the document this often during a lease.
const LOOKS: u32 = 10;
/// The number of times that a leader renews its lease before the lease would end.
const RENEWALS: u32 = 5;

/// The state of one host in the election.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DocumentElection {
    me: Candidate,
    pub(super) own: Leaderships<Release>,
    seen: Option<Seen>,
    /// The time of the next read.
    look_at: Timestamp,
    /// The time of the next renewal by this leader.
    renew_at: Timestamp,
    under_way: Option<UnderWay>,
    /// A write that may have taken effect, or may still take effect.
    unresolved: Option<Attempt>,
    /// The time of the next write after an unsuccessful one.
    retry_at: Timestamp,
}

/// The document as this host has read it last, and the time at which it first read that state, on
/// its own clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Seen {
    found: Option<(Revision, LeaderDocument)>,
    at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum UnderWay {
    Read,
    Write(Attempt),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt {
    /// The time before the first attempt to write this document.
    began: Timestamp,
    document: LeaderDocument,
}

impl DocumentElection {
    /// Returns the state of `me` in an election with this lease, which must be the same on all
    /// hosts.
    #[must_use]
    pub(crate) fn new(me: Candidate, lease: Duration) -> Self {
        Self {
            me,
            own: Leaderships::new(lease),
            seen: None,
            look_at: Timestamp(0),
            renew_at: NEVER,
            under_way: None,
            unresolved: None,
            retry_at: Timestamp(0),
        }
    }

    /// Returns this host's role at `now`.
    #[must_use]
    pub(crate) fn role(&self, now: Timestamp) -> Role {
        self.own.role(now)
    }

    /// Returns the document as this host has read it last. The outer option is `None` before the
    /// first read, the inner one if the document does not exist.
    #[must_use]
    pub(crate) fn seen(&self) -> Option<Option<&LeaderDocument>> {
        self.seen.as_ref().map(|seen| seen.found.as_ref().map(|(_, document)| document))
    }

    /// Returns the leader's document, unless the leader has stepped down, or this host has noticed
    /// no renewal for the duration of the lease.
    #[must_use]
    pub(crate) fn leader(&self, now: Timestamp) -> Option<&LeaderDocument> {
        let at = self.seen.as_ref()?.at;
        self.seen().flatten().filter(|leader| leader.release.is_none() && now < at + self.own.lease)
    }

    /// Returns whether a release must be written.
    #[must_use]
    pub(crate) fn is_releasing(&self) -> bool {
        self.own.release.is_some()
    }

    /// Ends a leadership because the store has `epoch` in force. After a while this host takes the
    /// lease back, with a higher epoch. Returns whether there was such a leadership.
    pub(crate) fn fenced(&mut self, now: Timestamp, epoch: Epoch) -> bool {
        let is_refused = self.own.is_fenced(epoch);
        if is_refused {
            self.lose(now);
            self.own.rest(now + self.own.lease / RENEWALS);
        }
        is_refused
    }

    /// Makes the leader step down. The leader stops serving as soon as this returns, so it must
    /// have stored its changes before. Without leadership, this does nothing.
    pub(crate) fn step_down(&mut self, release: Release) {
        self.own.step_down(release);
    }

    /// Makes the host read the document immediately, for example because a watch has reported a
    /// change.
    pub(crate) fn look(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// Returns what to do now.
    pub(crate) fn next(&mut self, now: Timestamp) -> Action<DocumentOp> {
        if self.own.has_lapsed(now) {
            self.lose(now);
        }
        if let Some(epoch) = self.own.begin_claim(now) {
            return Action::Claim(epoch);
        }
        if self.under_way.is_some() {
            return Action::Wait(self.own.wake_at());
        }
        if now >= self.look_at {
            self.under_way = Some(UnderWay::Read);
            return Action::Do(DocumentOp::Read);
        }
        match self.next_document(now) {
            Ok(document) if now >= self.retry_at => Action::Do(self.write(now, document)),
            next => {
                let at = next.err().unwrap_or(self.retry_at);
                Action::Wait(at.min(self.look_at).min(self.own.wake_at()))
            }
        }
    }

    /// Handles the document that was read; `None` if it does not exist.
    pub(crate) fn read(&mut self, now: Timestamp, found: Option<(Revision, LeaderDocument)>) {
        self.under_way = None;
        if self.seen.as_ref().is_none_or(|seen| seen.found != found) {
            self.seen = Some(Seen { found: found.clone(), at: now });
            self.resolve(now, found.map(|(_, document)| document));
        }
        self.look_at = if self.own.tenure.is_some() { NEVER } else { now + self.own.lease / LOOKS };
    }

    /// Records that the document could not be read.
    pub(crate) fn read_failed(&mut self, now: Timestamp) {
        self.under_way = None;
        self.look_at = now + retry_delay(self.own.lease);
    }

    /// Handles the outcome of a write.
    pub(crate) fn written(&mut self, now: Timestamp, outcome: Written) {
        let Some(UnderWay::Write(attempt)) = self.under_way.take() else { return };
        match outcome {
            Written::Done(revision) => {
                self.unresolved = None;
                let found = Some((revision, attempt.document.clone()));
                self.seen = Some(Seen { found, at: now });
                self.has_landed(now, attempt);
            }
            // The document was changed by another host, or by an earlier write of this host whose
            // outcome was unknown.
            Written::Conflict => self.look_at = now,
            Written::Unknown => {
                self.unresolved = Some(attempt);
                (self.look_at, self.retry_at) = (now, now + retry_delay(self.own.lease));
            }
            Written::Failed => {
                self.retry_at = now + retry_delay(self.own.lease);
                self.look_at = self.look_at.min(self.retry_at);
            }
        }
    }

    /// Handles the outcome of the claim.
    pub(crate) fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.own.claimed(now, outcome, Release::Anyone);
    }

    /// Returns the document to write now, or the time of the next query.
    fn next_document(&self, now: Timestamp) -> Result<LeaderDocument, Timestamp> {
        let current = self.seen().flatten();
        let Some(tenure) = &self.own.tenure else {
            let at = self.take_at();
            let epoch = current.map_or(0, |document| document.epoch).max(self.own.used);
            // Without a higher epoch, no host can lead any more.
            let Some(epoch) = epoch.checked_add(1) else { return Err(NEVER) };
            return if now >= at { Ok(self.me.document(epoch, 0)) } else { Err(at) };
        };
        let renewal = current.map_or(0, |document| document.renewal).wrapping_add(1);
        match (&self.own.release, tenure.claim) {
            (Some(release), _) => {
                let document = self.me.document(tenure.epoch.0, renewal);
                Ok(LeaderDocument { release: Some(release.clone()), ..document })
            }
            (None, Claim::Fenced(_)) => {
                let epoch = self.own.used.max(tenure.epoch.0).checked_add(1).ok_or(NEVER)?;
                Ok(self.me.document(epoch, 0))
            }
            _ if now >= self.renew_at => Ok(self.me.document(tenure.epoch.0, renewal)),
            _ => Err(self.renew_at),
        }
    }

    /// Returns the time from which this standby may take the lease.
    fn take_at(&self) -> Timestamp {
        let Some(Seen { found, at }) = &self.seen else { return NEVER };
        let Some((_, document)) = found else { return self.own.resting_until };
        let is_offered = match &document.release {
            Some(Release::Anyone) => document.writer != self.me.writer,
            Some(Release::To(node)) => *node == self.me.node,
            // The lease is this host's own, and has lapsed.
            None => document.writer == self.me.writer,
        };
        if is_offered || !self.own.keeps(LeaseRule::Patience) {
            return self.own.resting_until;
        }
        self.own.resting_until.max(*at + self.own.lease)
    }

    fn write(&mut self, now: Timestamp, document: LeaderDocument) -> DocumentOp {
        let earlier = self.unresolved.as_ref().filter(|attempt| attempt.document == document);
        let began = earlier.map_or(now, |attempt| attempt.began);
        self.under_way = Some(UnderWay::Write(Attempt { began, document: document.clone() }));
        let found = self.seen.as_ref().and_then(|seen| seen.found.as_ref());
        let expect = found.map_or(Expect::Absent, |(revision, _)| Expect::At(*revision));
        DocumentOp::Write(document, expect)
    }

    /// Determines from a changed document whether the lease is still this host's.
    fn resolve(&mut self, now: Timestamp, found: Option<LeaderDocument>) {
        let attempt = self.unresolved.take();
        if let Some(attempt) = attempt.filter(|attempt| found.as_ref() == Some(&attempt.document)) {
            return self.has_landed(now, attempt);
        }
        let epoch = self.own.tenure.as_ref().map(|tenure| tenure.epoch.0);
        let is_ours = found.is_some_and(|found| found.writer == self.me.writer && Some(found.epoch) == epoch);
        if !is_ours && self.own.tenure.is_some() {
            self.lose(now);
        }
    }

    fn has_landed(&mut self, now: Timestamp, Attempt { began, document }: Attempt) {
        if document.release.is_some() {
            return self.lose(now);
        }
        if self.own.has_lapsed(now) {
            self.lose(now);
        }
        if self.own.is_resting(now) {
            self.look_at = now;
            return;
        }
        let until = self.own.serves_until(began, now);
        self.own.lead(document.epoch, until, |tenure| tenure.epoch.0 == document.epoch);
        self.renew_at = began + self.own.lease / RENEWALS;
        self.look_at = NEVER;
    }

    fn lose(&mut self, now: Timestamp) {
        self.own.end(now);
        (self.renew_at, self.look_at) = (NEVER, now);
    }

    /// Counts the lease of the document that was read last from a different time.
    #[cfg(test)]
    pub(crate) fn count_from(&mut self, at: Timestamp) {
        self.seen.as_mut().unwrap().at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000_000)
    }

    fn host(node: &str, writer: u128) -> DocumentElection {
        let me = Candidate { node: node.into(), address: format!("{node}:1"), writer: WriterId(writer) };
        DocumentElection::new(me, LEASE)
    }

    /// Lets the host read `found`, and returns the document that it then writes at `now`.
    fn takes(
        host: &mut DocumentElection,
        now: Timestamp,
        found: Option<(Revision, LeaderDocument)>,
    ) -> Option<LeaderDocument> {
        host.look(now);
        assert_eq!(host.next(now), Action::Do(DocumentOp::Read));
        host.read(now, found);
        match host.next(now) {
            Action::Do(DocumentOp::Write(document, _)) => Some(document),
            _ => None,
        }
    }

    fn lead(host: &mut DocumentElection, now: Timestamp, revision: u64) -> LeaderDocument {
        let document = takes(host, now, None).unwrap();
        host.written(now, Written::Done(Revision(revision)));
        assert_eq!(host.next(now), Action::Claim(Epoch(document.epoch)));
        host.claimed(now, Claimed::Granted);
        document
    }

    #[test]
    fn a_leader_serves_two_thirds_of_its_lease_and_a_standby_waits_for_all_of_it() {
        let (mut a, mut b) = (host("a", 1), host("b", 2));
        let document = lead(&mut a, at(100), 7);
        assert_eq!(a.role(at(119)), Role::Leader(Epoch(1), at(120)));
        assert_eq!(a.role(at(120)), Role::Standby);
        // The standby has its own clock.
        let found = Some((Revision(7), document));
        assert_eq!(takes(&mut b, at(5), found.clone()), None);
        assert_eq!(takes(&mut b, at(34), found.clone()), None);
        assert_eq!(takes(&mut b, at(35), found).unwrap().epoch, 2);
    }

    #[test]
    fn a_renewal_with_an_unknown_outcome_counts_from_its_first_attempt() {
        let mut a = host("a", 1);
        let document = lead(&mut a, at(100), 7);
        let Action::Do(DocumentOp::Write(renewed, Expect::At(Revision(7)))) = a.next(at(106)) else {
            panic!("a renewal is expected")
        };
        a.written(at(110), Written::Unknown);
        assert_eq!(a.next(at(110)), Action::Do(DocumentOp::Read));
        a.read(at(110), Some((Revision(7), document)));
        assert_eq!(a.next(at(110)), Action::Wait(at(110) + retry_delay(LEASE)));
        assert_eq!(a.next(at(112)), Action::Do(DocumentOp::Write(renewed.clone(), Expect::At(Revision(7)))));
        a.written(at(112), Written::Conflict);
        assert_eq!(a.next(at(112)), Action::Do(DocumentOp::Read));
        a.read(at(112), Some((Revision(8), renewed)));
        assert_eq!(a.role(at(112)), Role::Leader(Epoch(1), at(126)));
    }

    #[test]
    fn failed_operations_are_repeated_after_a_delay() {
        let mut a = host("a", 1);
        assert_eq!(a.next(at(0)), Action::Do(DocumentOp::Read));
        a.read_failed(at(1));
        let mut now = at(1) + retry_delay(LEASE);
        assert_eq!(a.next(at(1)), Action::Wait(now));
        assert_eq!(a.next(now), Action::Do(DocumentOp::Read));
        a.read(now, None);
        for outcome in [Written::Unknown, Written::Failed] {
            assert!(matches!(a.next(now), Action::Do(DocumentOp::Write(..))));
            a.written(now, outcome);
            if outcome == Written::Unknown {
                assert_eq!(a.next(now), Action::Do(DocumentOp::Read));
                a.read(now, None);
            }
            let retry = now + retry_delay(LEASE);
            assert_eq!(a.next(now), Action::Wait(retry));
            now = retry;
        }
    }

    #[test]
    fn a_released_lease_is_taken_at_once_by_the_host_that_it_is_released_to() {
        let (mut a, mut b, mut c) = (host("a", 1), host("b", 2), host("c", 3));
        lead(&mut a, at(0), 7);
        a.step_down(Release::To("b".into()));
        assert_eq!(a.role(at(1)), Role::Standby);
        let Action::Do(DocumentOp::Write(released, _)) = a.next(at(1)) else {
            panic!("a release is expected")
        };
        a.written(at(1), Written::Done(Revision(8)));
        let found = Some((Revision(8), released));
        assert_eq!(takes(&mut a, at(1), found.clone()), None);
        assert_eq!(takes(&mut c, at(1), found.clone()), None);
        assert_eq!(takes(&mut b, at(1), found).unwrap().epoch, 2);
    }

    #[test]
    fn a_renewal_that_lands_after_the_lease_begins_a_leadership_with_a_higher_epoch() {
        for sees_the_lapse in [false, true] {
            let mut a = host("a", 1);
            lead(&mut a, at(100), 7);
            assert!(matches!(a.next(at(106)), Action::Do(DocumentOp::Write(..))));
            if sees_the_lapse {
                a.next(at(120));
            }
            a.written(at(121), Written::Done(Revision(8)));
            assert_eq!(a.role(at(121)), Role::Taking(Epoch(1)));
            let Action::Do(DocumentOp::Write(document, Expect::At(Revision(8)))) = a.next(at(121)) else {
                panic!("a document is expected")
            };
            assert_eq!(document.epoch, 2);
            a.written(at(121), Written::Done(Revision(9)));
            assert_eq!(a.next(at(121)), Action::Claim(Epoch(2)));
        }
    }

    #[test]
    fn a_fenced_claim_is_followed_by_a_higher_epoch() {
        let mut a = host("a", 1);
        takes(&mut a, at(0), None).unwrap();
        a.written(at(0), Written::Done(Revision(1)));
        assert_eq!(a.next(at(0)), Action::Claim(Epoch(1)));
        assert_eq!(a.role(at(0)), Role::Taking(Epoch(1)));
        a.claimed(at(1), Claimed::Fenced(Epoch(9)));
        let Action::Do(DocumentOp::Write(document, Expect::At(Revision(1)))) = a.next(at(1)) else {
            panic!("a document is expected")
        };
        assert_eq!(document.epoch, 10);
        a.written(at(1), Written::Done(Revision(2)));
        assert_eq!(a.next(at(1)), Action::Claim(Epoch(10)));
    }

    #[test]
    fn a_fenced_leader_returns_with_a_higher_epoch_after_a_while() {
        let mut a = host("a", 1);
        lead(&mut a, at(0), 7);
        assert!(!a.fenced(at(1), Epoch(0)));
        assert!(a.fenced(at(1), Epoch(8)));
        assert_eq!(a.role(at(1)), Role::Standby);
        assert_eq!(a.next(at(1)), Action::Do(DocumentOp::Read));
        let found = a.seen.clone().unwrap().found;
        a.read(at(1), found);
        assert!(matches!(a.next(at(1)), Action::Wait(_)));
        let returns = at(1) + LEASE / RENEWALS;
        a.look_at = NEVER;
        let Action::Do(DocumentOp::Write(document, _)) = a.next(returns) else {
            panic!("a document is expected")
        };
        assert_eq!(document.epoch, 9);
    }

    #[test]
    fn a_document_is_read_back_as_it_was_written() {
        let document =
            LeaderDocument { release: Some(Release::To("b".into())), ..host("a", 1).me.document(3, 4) };
        assert_eq!(LeaderDocument::decode(&document.encode()), Ok(document));
        let error = LeaderDocument::decode(b"{").unwrap_err();
        assert!(error.starts_with("the leader's document is malformed: "), "{error}");
    }
}
