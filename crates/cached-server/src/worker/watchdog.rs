//! The watchdog: says in the log which worker stands still, and what it is in the middle of.
//!
//! A worker never waits but for events, and a turn takes milliseconds at most. One that is in the same turn for seconds is held up by
//! a lock, by the system, or by a defect; its clients wait meanwhile, and nothing else would say so. The watchdog has a thread of
//! its own and takes no lock that a worker takes.

use super::pulse::Beat;
use crate::shared::Shared;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// For how long a worker may be in one turn before that is worth a line. The next lines come after twice as long each.
const STANDS_STILL: Duration = Duration::from_secs(2);

/// The same for the acceptor's thread, whose pulse beats once a second.
const ACCEPTOR_STANDS_STILL: Duration = Duration::from_secs(5);

/// A thread that is watched.
struct Watched {
    name: String,
    /// After how long the first line comes.
    patience: Duration,
    beat: Beat,
    since: Duration,
    /// The next line comes when it has stood still for so long.
    next: Duration,
}

/// What there is to say of a thread.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    StandsStill(Duration),
    GoesOn(Duration),
}

impl Watched {
    fn new(name: String, patience: Duration, now: Duration) -> Watched {
        Watched { name, patience, beat: Beat::default(), since: now, next: patience }
    }

    /// Judges a pulse at `now`.
    fn judge(&mut self, beat: Beat, now: Duration) -> Option<Verdict> {
        let still = now.saturating_sub(self.since);
        if beat != self.beat || beat.is_rest() {
            let was_said = self.next > self.patience;
            (self.beat, self.since, self.next) = (beat, now, self.patience);
            return was_said.then_some(Verdict::GoesOn(still));
        }
        if still < self.next {
            return None;
        }
        self.next = still.max(self.patience) * 2;
        Some(Verdict::StandsStill(still))
    }

    /// Takes no account of the time up to `now`.
    fn forgive(&mut self, now: Duration) {
        if self.next == self.patience {
            self.since = now;
        }
    }
}

/// The watchdog's thread; it ends when this is dropped.
pub(crate) struct Watchdog {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the workers of a server and its acceptor.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Watchdog> {
        let (end, ended) = mpsc::channel();
        let body = move || watch(&shared, &ended);
        let thread = thread::Builder::new().name("cached-watchdog".into()).spawn(body)?;
        Ok(Watchdog { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Whatever it was: there is nothing more to watch.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, ended: &mpsc::Receiver<()>) {
    let start = Instant::now();
    let worker = |index| Watched::new(format!("worker {index}"), STANDS_STILL, Duration::ZERO);
    let mut workers: Vec<Watched> = (0..shared.settings.threads).map(worker).collect();
    let mut acceptor = Watched::new("the acceptor's thread".into(), ACCEPTOR_STANDS_STILL, Duration::ZERO);
    let mut last = Duration::ZERO;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let now = start.elapsed();
        // The whole process stood still, or the machine did.
        let late = now.saturating_sub(last) > 2 * INTERVAL;
        last = now;
        for (index, watched) in workers.iter_mut().enumerate() {
            look(watched, shared.counters(index).pulse.look(), now, late);
        }
        look(&mut acceptor, shared.acceptor_pulse.look(), now, late);
    }
}

fn look(watched: &mut Watched, beat: Beat, now: Duration, late: bool) {
    if late {
        watched.forgive(now);
    }
    let (verdict, thread) = (watched.judge(beat, now), watched.name.as_str());
    match verdict {
        Some(Verdict::StandsStill(still)) => {
            let (fd, doing) = (beat.fd(), beat.doing());
            tracing::error!(fd, "{thread} stands still: for {} s within {doing}", still.as_secs());
        }
        Some(Verdict::GoesOn(still)) => {
            tracing::warn!("{thread} goes on, after {} s", still.as_secs());
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::pulse::{Doing, Pulse};

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn beat(turn: u64) -> Beat {
        let pulse = Pulse::default();
        pulse.begin(turn, 9, Doing::Store);
        pulse.look()
    }

    #[test]
    fn a_worker_that_stands_still_is_named_ever_less_often() {
        let mut watched = Watched::new("worker 0".into(), secs(2), secs(0));
        let said: Vec<u64> = (1..=40).filter(|now| watched.judge(beat(1), secs(*now)).is_some()).collect();
        assert_eq!(said, [3, 5, 9, 17, 33], "seen in second 1 for the first time");
        assert_eq!(watched.judge(beat(2), secs(41)), Some(Verdict::GoesOn(secs(40))));
        assert_eq!(watched.judge(beat(2), secs(42)), None);
        assert_eq!(watched.judge(beat(2), secs(43)), Some(Verdict::StandsStill(secs(2))));
    }

    #[test]
    fn work_and_rest_are_no_standing_still() {
        let mut watched = Watched::new("worker 0".into(), secs(2), secs(0));
        for now in 1..100 {
            let beat = if now % 10 < 5 { Beat::default() } else { beat(now) };
            assert_eq!(watched.judge(beat, secs(now)), None);
        }
    }

    #[test]
    fn time_in_which_the_whole_process_stood_still_does_not_count() {
        let mut watched = Watched::new("worker 0".into(), secs(2), secs(0));
        assert_eq!(watched.judge(beat(1), secs(1)), None);
        watched.forgive(secs(500));
        assert_eq!(watched.judge(beat(1), secs(500)), None);
        assert_eq!(watched.judge(beat(1), secs(502)), Some(Verdict::StandsStill(secs(2))));
    }
}
