//! What an election reports to the rest of the program: who leads, since when and why, and whether
//! this host may still serve.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use blocker::{Clock, Epoch, Timestamp, WriterId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::candidates::Candidates;
use super::document::{LeaderDocument, Release};
use crate::error::{Error, Result};

/// The time for which this host serves in one leadership, on this host's clock. Each leadership has
/// its own lease, so the lease of an earlier leadership never becomes valid during a later one.
pub struct Lease {
    clock: Arc<dyn Clock>,
    /// The end of the lease, in nanoseconds; 0 after the leadership.
    until: AtomicU64,
}

impl Lease {
    pub(super) fn new(clock: Arc<dyn Clock>, until: Timestamp) -> Self {
        Self { clock, until: AtomicU64::new(until.0) }
    }

    /// Returns whether this host leads now. This costs one reading of the clock, which does not
    /// stop while the process is stopped or the host is suspended.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.clock.now() < self.until()
    }

    /// Returns the time for which this host still leads without a further renewal; zero if it does
    /// not lead.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.until().since(self.clock.now())
    }

    fn until(&self) -> Timestamp {
        Timestamp(self.until.load(Ordering::Acquire))
    }

    pub(super) fn extend(&self, until: Timestamp) {
        self.until.store(until.0, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.extend(Timestamp(0));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

/// The part of this host, since when, and why.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The part.
    pub part: Part,
    /// The time of day at which the leadership began.
    pub since: SystemTime,
    /// The reason for the last change.
    pub cause: Cause,
}

/// The part of this host in the election.
#[derive(Clone, Debug)]
pub enum Part {
    /// Another host leads, or no host does.
    Standby {
        /// The document of the leader, if a leader is known whose lease has not ended. Its
        /// [renewal](LeaderDocument::renewal) is the first one that this host has read.
        leader: Option<LeaderDocument>,
    },
    /// This host has the lease and is claiming this epoch in the store: it must not serve yet.
    Taking(Epoch),
    /// This host leads: it serves while the lease holds.
    Leading {
        /// The epoch, which is in force in the store.
        epoch: Epoch,
        /// The identity of this process among the candidates.
        writer: WriterId,
        /// The lease of this leadership.
        lease: Arc<Lease>,
    },
}

impl Part {
    /// Returns whether this host may lead. The lease of the leadership tells whether it still does.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self, Self::Leading { .. })
    }
}

/// Declares the causes with their names and sentences.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident $name:literal $text:literal;)*) => {
        /// The reason why this host's role has changed.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$cause,)*];

            /// Returns the name as the metric's label shows it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$cause => $name,)* }
            }
        }

        impl fmt::Display for Cause {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$cause => $text,)* })
            }
        }
    };
}

causes! {
    /// The process has started.
    Started "started" "this process has started";
    /// No host has led before.
    Vacant "vacant" "no host has led before";
    /// The leader has stepped down.
    Offered "offered" "the leader has stepped down";
    /// The leader has not renewed its lease.
    Expired "expired" "the leader has not renewed its lease";
    /// The store has granted the epoch.
    Granted "granted" "the store has granted the epoch";
    /// Another host has become the leader.
    Followed "followed" "another host leads now";
    /// This host has stepped down.
    SteppedDown "stepped_down" "this host has stepped down";
    /// This host could not renew its lease in time.
    Lapsed "lapsed" "this host could not renew its lease in time";
    /// Another host has taken the lease.
    Superseded "superseded" "another host has taken the lease";
    /// The store has a higher epoch in force.
    Fenced "fenced" "the store has a higher epoch in force";
    /// The election has ended.
    Ended "ended" "the election has ended on this host";
}

/// A report on an election, for operators.
#[derive(Clone, Debug)]
pub struct Status {
    /// This host's role.
    pub leadership: Leadership,
    /// The time for which this host leads without a further renewal.
    pub lease_remaining: Duration,
    /// How often this host's role has changed for each cause.
    pub changes: Vec<(Cause, u64)>,
    /// The error of the registry's last operation, unless it has succeeded.
    pub error: Option<String>,
}

/// The state that the driver publishes.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) changes: Vec<AtomicU64>,
    pub(super) error: Mutex<Option<Error>>,
    /// The highest epoch that has fenced a leadership of this host, and a signal for each new one.
    pub(super) fenced: AtomicU64,
    pub(super) was_fenced: Notify,
}

impl Shared {
    pub(super) fn new() -> Self {
        let leadership = Leadership {
            part: Part::Standby { leader: None },
            since: SystemTime::now(),
            cause: Cause::Started,
        };
        Self {
            leadership: watch::Sender::new(leadership),
            changes: Cause::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            error: Mutex::default(),
            fenced: AtomicU64::new(0),
            was_fenced: Notify::new(),
        }
    }
}

/// A request to step down.
#[derive(Debug)]
pub(super) struct StepDown {
    pub(super) to: Release,
    /// The number of the successor on a disk.
    pub(super) node: Option<usize>,
    pub(super) done: oneshot::Sender<Result<()>>,
}

/// A handle for this host's participation in an election. The election ends when all handles are
/// dropped.
#[derive(Clone, Debug)]
pub struct Elector {
    pub(super) shared: Arc<Shared>,
    pub(super) candidates: Arc<Candidates>,
    pub(super) requests: mpsc::Sender<StepDown>,
}

impl Elector {
    /// Returns a receiver of the changes of this host's role.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    /// Returns the lease of the present leadership; `None` if this host does not lead.
    #[must_use]
    pub fn lease(&self) -> Option<Arc<Lease>> {
        match &self.shared.leadership.borrow().part {
            Part::Leading { lease, .. } => Some(Arc::clone(lease)),
            Part::Standby { .. } | Part::Taking(_) => None,
        }
    }

    /// Ends the leadership because the store has refused its changes, with `epoch` in force. The
    /// next leadership of this host has a higher epoch. Without such a leadership, this does
    /// nothing.
    pub fn fenced(&self, epoch: Epoch) {
        self.shared.fenced.fetch_max(epoch.0, Ordering::AcqRel);
        self.shared.was_fenced.notify_one();
    }

    /// Checks whether a leader can step down for `to`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if no candidate has the successor's name; the errors of
    /// [`Registry::list`](crate::Registry::list).
    pub async fn check(&self, to: &Release) -> Result<()> {
        self.candidates.successor(to).await.map(drop)
    }

    /// Makes this host step down, after it has stored all changes. Its lease ends immediately. The
    /// call returns when the release is written, or when the lease would have ended. For the
    /// duration of a lease, this process then leaves the leadership to other hosts or, with
    /// [`Release::To`] and this host's own name, to the next process of this host.
    ///
    /// # Errors
    /// Returns [`Error::Denied`] if this host does not lead; [`Error::Invalid`] if no candidate has
    /// the successor's name; the errors of [`Registry::list`](crate::Registry::list). After an
    /// error the host leads as before.
    ///
    /// # Cancel safety
    /// If the future is dropped, the host either steps down or leads as before.
    pub async fn step_down(&self, to: Release) -> Result<()> {
        let node = self.candidates.successor(&to).await?;
        let (done, ended) = oneshot::channel();
        let over = || Error::Denied("the election has ended on this host".into());
        self.requests.send(StepDown { to, node, done }).await.map_err(|_| over())?;
        ended.await.map_err(|_| over())?
    }

    /// Returns a report.
    #[must_use]
    pub fn status(&self) -> Status {
        let leadership = self.shared.leadership.borrow().clone();
        let lease_remaining = match &leadership.part {
            Part::Leading { lease, .. } => lease.remaining(),
            Part::Standby { .. } | Part::Taking(_) => Duration::ZERO,
        };
        let counts = self.shared.changes.iter().map(|count| count.load(Ordering::Relaxed));
        let changes = Cause::ALL.iter().copied().zip(counts).collect();
        let error = self.shared.error.lock().as_ref().map(Error::to_string);
        Status { leadership, lease_remaining, changes, error }
    }
}
