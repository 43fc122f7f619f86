//! The end of a change that the endpoint was asked for.

use std::sync::Arc;

use crate::http::alias::{Class, Names};
use crate::memory::deletes::Passing;
use crate::memory::knowledge::{Change, Knowledge, Scope};
use crate::memory::wide::{Area, End};

/// A change under way; dropped without an end, it is unsettled: it may still come about.
#[derive(Debug)]
pub(crate) struct Ending {
    change: Option<Change>,
    /// The bucket and the body that names the objects, if it does.
    deletion: Option<(String, Passing)>,
    names: Names,
}

impl Ending {
    /// Begins a change; it is to be forwarded after this. `body` is that of a request which deletes the objects that it names.
    pub(crate) fn begin(knowledge: &Arc<Knowledge>, scope: Scope, body: Option<Passing>) -> Self {
        let deletion = match (&scope, body) {
            (Scope::Wide(Area::Bucket(bucket)), Some(body)) => Some((bucket.clone(), body)),
            _ => None,
        };
        Self { change: Some(knowledge.begin(scope)), deletion, names: knowledge.names() }
    }

    /// Returns what is to look at the request's body.
    pub(crate) fn body(&self) -> Option<Passing> {
        self.deletion.as_ref().map(|(_, body)| body.clone())
    }

    /// Ends it: the endpoint does nothing more of it.
    pub(crate) fn settle(mut self) {
        self.end(End::Settled);
    }

    fn end(&mut self, end: End) {
        let Some(change) = self.change.take() else { return };
        match (self.classes(), end) {
            (Some(classes), end) => change.end_as(&classes, end),
            (None, End::Settled) => change.settle(),
            (None, End::Unsettled) => drop(change),
        }
    }

    /// Returns the classes of the objects that a deletion of many names; `None` if it may concern more of its bucket.
    fn classes(&self) -> Option<Vec<Class>> {
        let (bucket, body) = self.deletion.as_ref()?;
        let keys = body.keys()?;
        keys.iter().map(|key| Class::of(self.names, bucket, key.as_bytes())).collect()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(End::Unsettled);
    }
}
