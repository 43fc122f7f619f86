//! Reads whose response has not begun yet. If several clients read an unknown object, one reader
//! sends a request to the endpoint, and the others share the result.

use std::sync::Arc;

use cached_http::values::ByteRange;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::config::SidecarConfig;
use crate::endpoint::Failure;
use crate::http::read::{Place, Read};
use crate::memory::tables::{Guard, InProgress};

/// The reads in progress.
pub(crate) type Asking = InProgress<Place, Reader>;

/// A reader whose request is sent to the endpoint.
#[derive(Debug)]
pub(crate) struct Reader {
    brings: Brings,
    ended: watch::Sender<Ended>,
}

/// The content of the response to a reader.
#[derive(Clone, Copy, Debug)]
struct Brings {
    range: Option<ByteRange>,
    is_head: bool,
    /// Whether the request only checks for a change.
    is_verification: bool,
}

/// A reader in progress, until the response has begun and this value is dropped.
#[derive(Debug)]
pub(crate) struct First(Guard<Place, Reader>);

/// The result of the first reader's request, for the readers that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The content of the response may be known now, unless the request failed.
    LookAgain,
    /// The response is only for the first reader: the others have to send their own requests.
    Apart,
    /// The endpoint has not responded in time.
    Late,
}

/// Returns the time until which a reader that begins now waits for others: as long as the endpoint
/// may take for one request.
pub(crate) fn deadline(config: &SidecarConfig) -> Instant {
    // A request that exceeds one of its own time limits fails earlier.
    Instant::now() + config.response_timeout + config.connect_timeout
}

/// A wait for the response to another reader.
#[derive(Debug)]
pub(crate) struct Waiting(watch::Receiver<Ended>);

impl Waiting {
    /// Waits until the other reader's response has begun, or its request has failed, or until
    /// `deadline`. At the deadline this reader has to send its own request.
    pub(crate) async fn end(mut self, deadline: Instant) -> Ended {
        let ended = async {
            // The receiver fails when the other reader is finished.
            while self.0.changed().await.is_ok() {}
            *self.0.borrow()
        };
        timeout_at(deadline, ended).await.unwrap_or(Ended::Apart)
    }
}

impl First {
    /// Ends the request, and tells the waiting readers its result.
    pub(crate) fn end(self, ended: Ended) {
        self.0.value.ended.send_replace(ended);
    }
}

/// Returns the failure, after telling the readers that wait for the first one.
pub(crate) fn failed(failure: Failure, first: Option<First>) -> Failure {
    if matches!(failure, Failure::Late) {
        first.into_iter().for_each(|first| first.end(Ended::Late));
    }
    failure
}

impl Asking {
    /// Enters a reader of an object, which then has to send its request to the endpoint.
    /// `is_verification` means that the reader knows the object, and only verifies that it is
    /// current.
    ///
    /// # Errors
    /// A wait, if another reader is requesting the same bytes.
    pub(crate) fn turn(self: &Arc<Self>, read: &Read, is_verification: bool) -> Result<First, Waiting> {
        // Readers are grouped by the requested name, because another name may denote another
        // object.
        let place = (read.key, read.has_checksums);
        let brings = Brings { range: read.range, is_head: read.is_head, is_verification };
        let reader = || Reader { brings, ended: watch::Sender::new(Ended::LookAgain) };
        let wait =
            |first: &Arc<Reader>| first.brings.suffices(brings).then(|| Waiting(first.ended.subscribe()));
        self.enter_unless(place, reader, wait).map(First)
    }
}

impl Brings {
    /// Returns whether a reader that requests `then` may wait for the response to this one.
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

/// Returns whether a read of `first` contains the first byte of `then`, whatever the object's size.
fn covers(first: Option<ByteRange>, then: Option<ByteRange>) -> bool {
    match (first, then) {
        (None, _) => true,
        (Some(ByteRange::From(0, None)), None) => true,
        (Some(ByteRange::From(from, to)), Some(ByteRange::From(at, _))) => {
            from <= at && to.is_none_or(|to| at <= to)
        }
        (first, then) => first == then,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_one_that_brings_its_first_byte() {
        let from = |first, last| Some(ByteRange::From(first, last));
        for (first, then, is_covered) in [
            (None, None, true),
            (None, from(5, None), true),
            (from(0, None), None, true),
            (from(0, Some(9)), None, false),
            (from(5, Some(9)), from(9, Some(20)), true),
            (from(5, Some(9)), from(10, Some(20)), false),
            (from(5, Some(9)), from(4, Some(9)), false),
            (Some(ByteRange::Last(5)), Some(ByteRange::Last(5)), true),
            (Some(ByteRange::Last(5)), Some(ByteRange::Last(4)), false),
        ] {
            assert_eq!(covers(first, then), is_covered, "{first:?} {then:?}");
        }
    }

    #[test]
    fn those_that_wait_know_what_the_first_question_has_come_to() {
        let head = hyper::Request::get("/b/k").body(()).unwrap().into_parts().0;
        let target = crate::http::target::Addressing::new(&[]).target("localhost", "/b/k");
        let read = Read::understand(&head, &target).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let asking = Arc::new(Asking::default());
        runtime.block_on(async {
            let later = Instant::now() + std::time::Duration::from_secs(3600);
            for ended in [Ended::LookAgain, Ended::Apart, Ended::Late] {
                let Ok(first) = asking.turn(&read, false) else { panic!("nothing is under way") };
                let Err(waiting) = asking.turn(&read, false) else { panic!("it is under way") };
                first.end(ended);
                assert_eq!(waiting.end(later).await, ended);
            }
            let Ok(first) = asking.turn(&read, false) else { panic!("nothing is under way") };
            let [Err(one), Err(other)] = [(); 2].map(|()| asking.turn(&read, false)) else {
                panic!("it is under way")
            };
            assert_eq!(one.end(Instant::now()).await, Ended::Apart);
            // The client of the first reader has disconnected.
            drop(first);
            assert_eq!(other.end(later).await, Ended::LookAgain);
        });
        assert!(asking.is_empty());
    }
}
