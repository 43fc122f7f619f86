//! Remembered objects: heads, absences, bytes, and the changes that invalidate them. This module
//! sends no requests: questions to the endpoint, and answers to clients, are elsewhere.

pub(crate) mod changes;
pub(crate) mod filling;
pub(crate) mod generation;
pub(crate) mod pieces;
pub(crate) mod tables;
pub(crate) mod wide;
pub(crate) mod writes;

use std::sync::Arc;
use std::time::Duration;

use crate::http::read::Read;
use crate::http::target::{Class, Names, ObjectKey};
use crate::memory::changes::{Changes, Question};
use crate::memory::generation::Head;
use crate::memory::tables::{Absent, Answer, Known, Table};
use crate::memory::wide::{Area, End, Standing};

/// All remembered objects.
#[derive(Debug)]
pub(crate) struct Knowledge {
    pub(crate) heads: Table<Known>,
    pub(crate) absents: Table<Absent>,
    pub(crate) changes: Arc<Changes>,
    /// The rule by which the endpoint distinguishes keys.
    pub(crate) names: Names,
}

/// The result of a look-up.
#[derive(Debug)]
pub(crate) enum Found {
    /// The object has this head.
    Object(Known),
    /// The object had this head, and a wide change in progress may concern it.
    Uncertain(Known),
    /// The object is missing.
    Absent(Absent),
}

/// The scope of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One object, under any of its names.
    Key(Class),
    /// Several objects.
    Wide(Area),
}

impl Knowledge {
    /// Returns an empty table. A change with an unknown end counts as ended after `settle_time`.
    pub(crate) fn new(
        heads: Table<Known>,
        absents: Table<Absent>,
        settle_time: Duration,
        names: Names,
    ) -> Self {
        Self { heads, absents, changes: Arc::new(Changes::new(settle_time)), names }
    }

    /// Looks up an object that no change has invalidated. An entry under another name of the same
    /// class may be another object, and is not returned.
    pub(crate) fn find(&self, read: &Read) -> Option<Found> {
        let name = self.names.folded(&read.name);
        let standing = |asked| self.changes.standing(asked, &read.bucket, &name);
        if let Some(known) = self.heads.get(&read.place()).filter(|known| known.head.object == read.key) {
            match standing(known.asked) {
                Standing::Current => return Some(Found::Object(known)),
                Standing::Uncertain => return Some(Found::Uncertain(known)),
                Standing::Void => self.heads.forget(&read.place(), &known.head),
            }
        }
        let absent = self.absents.get(&(read.kept_as, false)).filter(|absent| absent.object == read.key)?;
        (standing(absent.asked) == Standing::Current).then_some(Found::Absent(absent))
    }

    /// Begins a question about an object.
    pub(crate) fn question(&self, read: &Read) -> Question {
        self.changes.question(read.kept_as)
    }

    /// Enters the response to a question if it is still current. In that case returns the
    /// remembered head of the same bytes.
    pub(crate) fn enter(&self, read: &Read, head: Head, question: &Question) -> Arc<Head> {
        let head = Arc::new(head);
        let entered = question.enter(Some(head.generation), |asked| {
            self.absents.forget(read.kept_as);
            self.heads.forget_others(read.kept_as, &head.generation);
            self.heads.enter(read.place(), Arc::clone(&head), asked)
        });
        entered.unwrap_or(head)
    }

    /// Records that an object exists, but its response must not be kept.
    pub(crate) fn enter_unkept(&self, read: &Read, question: &Question) {
        question.enter(None, |_| self.forget_all(read.kept_as));
    }

    /// Records that an object is missing. `answer` is the endpoint's response, if it is to be kept.
    pub(crate) fn enter_absent(&self, read: &Read, answer: Option<Answer>, question: &Question) {
        question.enter(None, |asked| {
            self.heads.forget_all(read.kept_as);
            if let Some(answer) = answer {
                self.absents.enter(read.kept_as, read.key, answer, asked);
            }
        });
    }

    /// Removes an object's head if it is still this head.
    pub(crate) fn forget(&self, read: &Read, head: &Arc<Head>) {
        self.heads.forget(&read.place(), head);
    }

    fn forget_all(&self, key: ObjectKey) {
        self.heads.forget_all(key);
        self.absents.forget(key);
    }

    /// Begins a change.
    pub(crate) fn begin(&self, scope: &Scope) {
        match scope {
            Scope::Key(class) => self.changes.begin(class.key(), || self.forget_all(class.key())),
            Scope::Wide(area) => self.changes.wide.begin(area),
        }
    }

    /// Ends a change that has begun.
    pub(crate) fn end(&self, scope: &Scope, end: End) {
        match scope {
            Scope::Key(class) => self.changes.end(class.key(), end),
            Scope::Wide(area) => self.changes.wide.end(area, end),
        }
    }

    /// Records that an object has changed, under any of its names.
    pub(crate) fn changed(&self, bucket: &str, key: &[u8]) {
        match Class::of(self.names, bucket, key) {
            Some(class) => {
                self.begin(&Scope::Key(class));
                self.end(&Scope::Key(class), End::Settled);
            }
            None => self.changed_wide(Some(bucket), b""),
        }
    }

    /// Records that objects have changed: all objects, or those of a bucket with a key prefix.
    pub(crate) fn changed_wide(&self, bucket: Option<&str>, prefix: &[u8]) {
        self.changes.wide.changed(bucket, &self.names.folded_prefix(prefix));
    }
}
