//! Reads whose answer has not begun yet, so that of several readers of an unknown object one asks, and the others
//! know it a moment later.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::range::Asked;
use crate::read::Read;
use crate::table::Place;

/// The reads that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    readers: Mutex<HashMap<Place, Vec<Reader>>>,
    number: AtomicU64,
}

#[derive(Debug)]
struct Reader {
    number: u64,
    brings: Brings,
    answered: watch::Receiver<()>,
}

/// What the answer to a reader brings.
#[derive(Clone, Copy, Debug)]
struct Brings {
    range: Option<Asked>,
    is_head: bool,
    /// Whether the endpoint is asked for a change alone.
    is_verification: bool,
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
    /// Returns what a reader of an object is to do. `is_verification` states that it knows the object, and asks whether that
    /// holds.
    pub(crate) fn turn(self: &Arc<Self>, read: &Read, is_verification: bool) -> Turn {
        let place = read.place();
        let brings = Brings { range: read.range, is_head: read.is_head, is_verification };
        let mut readers = self.readers.lock();
        let list = readers.entry(place).or_default();
        if let Some(first) = list.iter().find(|reader| reader.brings.suffices(brings)) {
            return Turn::After(first.answered.clone());
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, answered) = watch::channel(());
        list.push(Reader { number, brings, answered });
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

impl Brings {
    /// Returns whether a reader that asks for `then` may wait for the answer to this one.
    fn suffices(self, then: Brings) -> bool {
        match () {
            () if self.is_verification || then.is_verification => {
                self.is_verification && then.is_verification
            }
            () if then.is_head => true,
            () => !self.is_head && covers(self.range, then.range),
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
