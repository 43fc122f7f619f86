//! Reads whose answer has not begun yet, so that of several readers of an unknown object one asks, and the others
//! know it a moment later.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::range::Asked;
use crate::read::Read;
use crate::target::ObjectKey;

type Place = (ObjectKey, bool);

/// The reads that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    readers: Mutex<HashMap<Place, Vec<Reader>>>,
    number: AtomicU64,
}

#[derive(Debug)]
struct Reader {
    number: u64,
    range: Option<Asked>,
    answered: watch::Receiver<()>,
}

/// A reader that asks, until its answer has begun and this is dropped.
#[derive(Debug)]
pub(crate) struct First {
    asking: Arc<Asking>,
    place: Place,
    number: u64,
    _answered: watch::Sender<()>,
}

/// What a reader is to do.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Ask.
    First(First),
    /// Wait until this channel closes: another reader asks for the same bytes.
    After(watch::Receiver<()>),
}

impl Asking {
    /// Returns what a reader of an object is to do.
    pub(crate) fn turn(self: &Arc<Self>, read: &Read) -> Turn {
        let place = (read.key, read.has_checksums);
        let mut readers = self.readers.lock();
        let list = readers.entry(place).or_default();
        if let Some(first) = list.iter().find(|reader| covers(reader.range, read.range)) {
            return Turn::After(first.answered.clone());
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, answered) = watch::channel(());
        list.push(Reader { number, range: read.range, answered });
        Turn::First(First { asking: Arc::clone(self), place, number, _answered: sender })
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let mut readers = self.asking.readers.lock();
        if let Some(list) = readers.get_mut(&self.place) {
            list.retain(|reader| reader.number != self.number);
            if list.is_empty() {
                readers.remove(&self.place);
            }
        }
    }
}

/// Returns whether a read of `first` brings the first byte of `then`, whatever the object's size.
fn covers(first: Option<Asked>, then: Option<Asked>) -> bool {
    match (first, then) {
        (None, _) => true,
        (Some(Asked::From(0, None)), None) => true,
        (Some(Asked::From(from, to)), Some(Asked::From(at, _))) => from <= at && to.is_none_or(|to| at <= to),
        (first, then) => first == then,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_one_that_brings_its_first_byte() {
        let from = |first, last| Some(Asked::From(first, last));
        for (first, then, is_covered) in [
            (None, None, true),
            (None, from(5, None), true),
            (from(0, None), None, true),
            (from(0, Some(9)), None, false),
            (from(5, Some(9)), from(9, Some(20)), true),
            (from(5, Some(9)), from(10, Some(20)), false),
            (from(5, Some(9)), from(4, Some(9)), false),
            (Some(Asked::Last(5)), Some(Asked::Last(5)), true),
            (Some(Asked::Last(5)), Some(Asked::Last(4)), false),
        ] {
            assert_eq!(covers(first, then), is_covered, "{first:?} {then:?}");
        }
    }
}
