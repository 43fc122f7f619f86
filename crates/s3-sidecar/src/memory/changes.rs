//! Decides which of the endpoint's responses remain valid. A response is invalid if its question
//! was asked before the end of a change of the object. (A *question* is a request that the sidecar
//! sends about an object.)
//!
//! All questions and all ends of changes are numbered in one sequence. A response is *current* if
//! its question was asked after the end of the last change of that object that passed through here
//! or was announced. While a change is in progress no response is current. A change with an unknown
//! end (the connection broke, or the endpoint had an error) may still be executed: its scope is
//! *unsettled* for some time.
//!
//! Responses may arrive in a different order than the questions were asked. Once the response to a
//! newer question has stated something else, an older response is ignored. Only concurrent
//! questions can overtake each other.
//!
//! A change of one object leaves a record only while questions about it or changes of it are in
//! progress. Changes of several objects (a bucket, a prefix, everything) are *wide*: their numbers
//! are kept, in a table of limited size.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::http::target::ObjectKey;
use crate::memory::generation::GenerationId;
use crate::memory::wide::{Area, End, Standing, Wide};

/// The time of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The number of this moment in the sequence of questions and changes.
    pub(crate) sequence: u64,
    /// A time before the question was sent.
    pub(crate) at: Instant,
}

/// The number of shards, each with a lock.
const SHARDS: usize = 16;

/// The maximum number of individually unsettled objects of a shard.
const UNSETTLED_MAX: usize = 4096;

/// The changes and questions in progress.
#[derive(Debug)]
pub(crate) struct Changes {
    sequence: Arc<AtomicU64>,
    shards: [Mutex<Shard>; SHARDS],
    /// The changes of several objects.
    pub(crate) wide: Wide,
    settle_time: Duration,
}

#[derive(Debug, Default)]
struct Shard {
    activities: HashMap<ObjectKey, Activity>,
    /// Objects whose last change has an unknown end, each with the time when the change counts as
    /// ended, ordered by time.
    unsettled: VecDeque<(Instant, ObjectKey)>,
}

/// The activity on one object.
#[derive(Debug, Default)]
struct Activity {
    questions: u32,
    changes: u32,
    /// The number of the object's entries among the unsettled changes.
    unsettled: u32,
    /// The number of the last beginning or end of a change.
    changed: u64,
    /// The number of the newest question whose response was accepted, and the generation that the
    /// response stated, or `None` if it stated none.
    answered: (u64, Option<GenerationId>),
}

/// A question to the endpoint in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Question {
    changes: Arc<Changes>,
    key: ObjectKey,
    moment: Moment,
}

impl Changes {
    /// Returns a table without changes. A change with an unknown end counts as ended after
    /// `settle_time`.
    pub(crate) fn new(settle_time: Duration) -> Self {
        let sequence = Arc::new(AtomicU64::new(1));
        let wide = Wide::new(Arc::clone(&sequence), settle_time);
        Self { sequence, shards: Default::default(), wide, settle_time }
    }

    fn shard(&self, key: &ObjectKey) -> MutexGuard<'_, Shard> {
        let mut shard = self.shards[usize::from(key[0]) % SHARDS].lock();
        shard.settle(Instant::now(), &self.sequence);
        shard
    }

    /// Begins a question about an object. Send the question only afterwards.
    pub(crate) fn question(self: &Arc<Self>, key: ObjectKey) -> Question {
        self.shard(&key).activities.entry(key).or_default().questions += 1;
        let moment = self.moment();
        Question { changes: Arc::clone(self), key, moment }
    }

    /// Returns the current moment, with a new number.
    pub(crate) fn moment(&self) -> Moment {
        Moment { sequence: next(&self.sequence), at: Instant::now() }
    }

    /// Begins a change of an object. `forget` removes the object from memory, and nothing is
    /// entered meanwhile.
    pub(crate) fn begin(&self, key: ObjectKey, forget: impl FnOnce()) {
        let mut shard = self.shard(&key);
        let activity = shard.activities.entry(key).or_default();
        activity.changes += 1;
        activity.changed = next(&self.sequence);
        forget();
    }

    /// Ends a change that has begun.
    pub(crate) fn end(&self, key: ObjectKey, end: End) {
        let mut shard = self.shard(&key);
        let Some(activity) = shard.activities.get_mut(&key) else { return };
        activity.changes -= 1;
        activity.changed = next(&self.sequence);
        if end == End::Unsettled {
            activity.unsettled += 1;
            shard.unsettled.push_back((Instant::now() + self.settle_time, key));
            if shard.unsettled.len() > UNSETTLED_MAX {
                // There are too many unsettled objects, so everything is unsettled for as long as
                // this object would have been.
                self.wide.begin(&Area::All);
                self.wide.end(&Area::All, End::Unsettled);
                shard.forget_first_unsettled(&self.sequence);
            }
        }
        shard.drop_if_idle(&key);
    }

    /// Returns the effect of wide changes on the response to a question asked at `moment`.
    pub(crate) fn standing(&self, moment: Moment, bucket: &str, key: &[u8]) -> Standing {
        self.wide.standing(moment.sequence, bucket, key)
    }

    /// Returns the number of objects with a question or a change in progress, or an unsettled
    /// change.
    pub(crate) fn under_way(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().activities.len()).sum()
    }
}

/// Returns the next number, which is greater than the number of every earlier question.
fn next(sequence: &AtomicU64) -> u64 {
    sequence.fetch_add(1, Ordering::SeqCst) + 1
}

impl Shard {
    /// Ends changes whose time has passed.
    fn settle(&mut self, now: Instant, sequence: &AtomicU64) {
        while self.unsettled.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_first_unsettled(sequence);
        }
    }

    fn forget_first_unsettled(&mut self, sequence: &AtomicU64) {
        let Some((_, key)) = self.unsettled.pop_front() else { return };
        if let Some(activity) = self.activities.get_mut(&key) {
            activity.unsettled -= 1;
            // Until this moment the change may have been executed.
            activity.changed = next(sequence);
        }
        self.drop_if_idle(&key);
    }

    fn drop_if_idle(&mut self, key: &ObjectKey) {
        let is_idle = |one: &Activity| one.questions == 0 && one.changes == 0 && one.unsettled == 0;
        if self.activities.get(key).is_some_and(is_idle) {
            self.activities.remove(key);
        }
    }
}

impl Question {
    /// Calls `enter` with the moment from which the response is valid. Does nothing if a change of
    /// the object has begun or ended since the question, or if the response to a newer question has
    /// stated a generation other than `stated`, the one in this response. Until `enter` returns, no
    /// change begins and no other response is accepted.
    pub(crate) fn enter<T>(
        &self,
        stated: Option<GenerationId>,
        enter: impl FnOnce(Moment) -> T,
    ) -> Option<T> {
        let mut shard = self.changes.shard(&self.key);
        let activity = shard.activities.get_mut(&self.key)?;
        let is_current =
            activity.changes == 0 && activity.unsettled == 0 && self.moment.sequence >= activity.changed;
        let (newest, known) = activity.answered;
        let is_overtaken = self.moment.sequence < newest;
        if !is_current || (is_overtaken && (stated.is_none() || stated != known)) {
            return None;
        }
        if !is_overtaken {
            activity.answered = (self.moment.sequence, stated);
        }
        Some(enter(self.moment))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut shard = self.changes.shard(&self.key);
        if let Some(activity) = shard.activities.get_mut(&self.key) {
            activity.questions -= 1;
        }
        shard.drop_if_idle(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Arc<Changes> {
        Arc::new(Changes::new(Duration::from_secs(3600)))
    }

    fn enters(question: &Question) -> bool {
        question.enter(None, |_| ()).is_some()
    }

    #[test]
    fn only_a_question_after_the_end_of_a_change_is_believed() {
        let changes = changes();
        let key = [1; 32];
        let before = changes.question(key);
        assert!(enters(&before));
        changes.begin(key, || ());
        let within = changes.question(key);
        assert!(!enters(&before) && !enters(&within) && enters(&changes.question([2; 32])));
        changes.end(key, End::Settled);
        assert!(!enters(&before) && !enters(&within) && enters(&changes.question(key)));
        drop((before, within));
        assert_eq!(changes.under_way(), 0);
    }

    #[test]
    fn an_answer_to_an_older_question_adds_to_what_a_newer_one_has_stated_and_changes_nothing() {
        let changes = changes();
        let key = [1; 32];
        let [first, second, third] = [(); 3].map(|()| changes.question(key));
        let believed = |question: &Question, stated: Option<u8>| {
            question.enter(stated.map(|byte| [byte; 24]), |_| ()).is_some()
        };
        assert!(believed(&second, Some(2)) && !believed(&first, Some(1)) && !believed(&first, None));
        assert!(believed(&first, Some(2)) && believed(&third, None));
        // The response is not believed, because no known state exists to which it could be added.
        assert!(!believed(&second, None) && !believed(&first, Some(2)));
        assert!(believed(&changes.question(key), Some(1)));
        drop((first, second, third));
        assert_eq!(changes.under_way(), 0);
    }

    #[test]
    fn nothing_is_believed_before_the_last_of_several_changes_has_ended() {
        let changes = changes();
        let key = [1; 32];
        changes.begin(key, || ());
        changes.begin(key, || ());
        changes.end(key, End::Settled);
        assert!(!enters(&changes.question(key)));
        changes.end(key, End::Settled);
        assert!(enters(&changes.question(key)));
    }

    #[test]
    fn a_change_without_a_known_end_is_unsettled_for_its_time() {
        let changes = changes();
        let key = [1; 32];
        changes.begin(key, || ());
        changes.end(key, End::Unsettled);
        let question = changes.question(key);
        assert!(!enters(&question));
        let mut shard = changes.shards[1].lock();
        shard.settle(Instant::now(), &changes.sequence);
        assert_eq!(shard.unsettled.len(), 1);
        shard.settle(Instant::now() + Duration::from_secs(3601), &changes.sequence);
        drop(shard);
        // The question was asked when the change might still have been executed.
        assert!(!enters(&question) && enters(&changes.question(key)));
        drop(question);
        assert_eq!(changes.under_way(), 0);
    }

    #[test]
    fn unsettled_changes_are_limited() {
        let changes = changes();
        let key = |number: usize| {
            let mut key = [0; 32];
            key[8..16].copy_from_slice(&(number as u64).to_le_bytes());
            key
        };
        let moment = changes.question(key(0)).moment;
        for number in 0..UNSETTLED_MAX {
            changes.begin(key(number), || ());
            changes.end(key(number), End::Unsettled);
        }
        assert_eq!(changes.standing(moment, "bucket", b"key"), Standing::Current);
        changes.begin(key(UNSETTLED_MAX), || ());
        changes.end(key(UNSETTLED_MAX), End::Unsettled);
        assert_eq!(changes.under_way(), UNSETTLED_MAX);
        let later = changes.question([9; 32]).moment;
        assert_eq!(changes.standing(later, "bucket", b"key"), Standing::Uncertain);
    }
}
