//! A layer that measures the blocker below: the latency and failures of each operation, and the
//! time since its last response.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cached_metrics::{Collect, Counter, Families, Label, Latency, LatencySnapshot, Value};

use crate::{
    Blocker, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Clock, Error, FlushReply, FlushRequest,
    Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, ReadReply, ReadRequest,
    Reply, Result, Timestamp,
};

/// Measures every operation of the blocker below, and changes nothing.
///
/// The cost of an operation is two readings of the clock and three additions. An operation whose
/// reply is dropped is not counted.
///
/// ```
/// use std::sync::Arc;
/// use blocker::{BlockerExt, Measured, Memory, SystemClock, executor::block_on};
///
/// let store = Measured::new(Arc::new(Memory::default()), "memory", Arc::new(SystemClock));
/// let measurements = store.measurements();
/// block_on(store.put(&"vm/disk.0".parse()?, b"hello"))?;
/// assert_eq!(measurements.operations().iter().map(|one| one.latency.count()).sum::<u64>(), 1);
/// # Ok::<_, blocker::Error>(())
/// ```
pub struct Measured {
    below: Arc<dyn Blocker>,
    measurements: Arc<Measurements>,
}

/// The measurements of a [`Measured`] layer.
pub struct Measurements {
    backend: &'static str,
    clock: Arc<dyn Clock>,
    operations: [Operation; NAMES.len()],
    /// The time just after the start of the first operation since the last response, in nanoseconds
    /// of the clock and never 0; 0 if no operation has started since.
    silent_since: AtomicU64,
    /// The time of the last response, in nanoseconds of the clock.
    answered_at: AtomicU64,
}

#[derive(Default)]
struct Operation {
    latency: Latency,
    failures: Counter,
}

/// The measurements of one operation.
#[derive(Clone, Copy, Debug)]
pub struct OperationStats {
    /// The operation's name.
    pub name: &'static str,
    /// The latencies, whatever the outcome.
    pub latency: LatencySnapshot,
    /// The number of failures. A missing, existing or unexpectedly changed object is not a failure.
    pub failures: u64,
}

/// The names of the operations, in the order of [`Measurements::operations`].
const NAMES: [&str; 15] = [
    "read",
    "write",
    "write_zeroes",
    "write_runs",
    "discard",
    "compare_and_write",
    "write_full",
    "truncate",
    "delete",
    "copy",
    "info",
    "list",
    "flush",
    "claim",
    "invalidate",
];

impl Measurements {
    /// Returns every operation's measurements.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationStats> {
        let of = |(operation, name): (&Operation, &'static str)| OperationStats {
            name,
            latency: operation.latency.snapshot(),
            failures: operation.failures.get(),
        };
        self.operations.iter().zip(NAMES).map(of).collect()
    }

    /// Returns the kind of the blocker below.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// Returns the time for which operations have been waiting without any response; zero if no
    /// operation is waiting.
    #[must_use]
    pub fn silence(&self) -> Duration {
        match self.silent_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.clock.now().since(Timestamp(since)),
        }
    }

    /// Returns the time since the last response, whether or not there were requests in between.
    #[must_use]
    pub fn since_answer(&self) -> Duration {
        self.clock.now().since(Timestamp(self.answered_at.load(Ordering::Relaxed)))
    }

    fn record<T>(&self, operation: usize, begun: Timestamp, answer: &Result<T>) {
        let now = self.clock.now();
        let measured = &self.operations[operation];
        measured.latency.observe(now.since(begun));
        let failure = answer.as_ref().err().filter(|error| !error.is_answer());
        if failure.is_some() {
            measured.failures.increment();
        }
        // After one of these errors the store may be unreachable.
        let is_silent = matches!(
            failure,
            Some(
                Error::Retryable(_) | Error::NotStored(_) | Error::OutcomeUnknown(_) | Error::DeadlinePassed
            )
        );
        if !is_silent {
            self.answered_at.store(now.0, Ordering::Relaxed);
            if self.silent_since.load(Ordering::Relaxed) != 0 {
                self.silent_since.store(0, Ordering::Relaxed);
            }
            return;
        }
        let since = begun.0.max(1);
        // A response after the start of this operation proves that the store is reachable.
        if self.answered_at.load(Ordering::Relaxed) <= since {
            // This fails if the silence is already recorded.
            let _ = self.silent_since.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Collect for Measurements {
    fn collect(&self, into: &mut Families) {
        let labels = |name: &'static str| -> Vec<Label> {
            vec![("backend", self.backend).into(), ("operation", name).into()]
        };
        for operation in self.operations() {
            let help = "The duration of operations of the store, in seconds.";
            // The buckets range from 16 µs, which is less than any store operation takes, to 67 s.
            let value = operation.latency.value(4, 26);
            into.sample("store_request_duration_seconds", help, labels(operation.name), value);
        }
        for operation in self.operations() {
            let help = "Operations of the store that failed; a missing object or an unmet condition is not a failure.";
            let value = Value::Counter(operation.failures);
            into.sample("store_request_failures_total", help, labels(operation.name), value);
        }
        let help = "The time for which operations have waited for the store without any response; 0 if the store responds; \
                    from 5 on, /readyz fails.";
        let value = Value::Gauge(self.silence().as_secs_f64());
        into.sample("store_silence_seconds", help, vec![("backend", self.backend).into()], value);
    }
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measurements").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl Measured {
    /// Returns a layer over `below`, a blocker of the given kind. Times are measured with `clock`.
    #[must_use]
    pub fn new(below: Arc<dyn Blocker>, backend: &'static str, clock: Arc<dyn Clock>) -> Measured {
        let answered_at = AtomicU64::new(clock.now().0);
        let measurements = Measurements {
            backend,
            clock,
            operations: std::array::from_fn(|_| Operation::default()),
            silent_since: AtomicU64::new(0),
            answered_at,
        };
        Measured { below, measurements: Arc::new(measurements) }
    }

    /// Returns the measurements, which do not keep the blocker below alive.
    #[must_use]
    pub fn measurements(&self) -> Arc<Measurements> {
        Arc::clone(&self.measurements)
    }

    fn measure<T: Send + 'static>(&self, name: &str, ask: impl FnOnce(&dyn Blocker) -> Reply<T>) -> Reply<T> {
        let operation = NAMES.iter().position(|known| *known == name).unwrap_or(0);
        let measurements = Arc::clone(&self.measurements);
        let begun = measurements.clock.now();
        ask(&*self.below).then(move |answer| {
            measurements.record(operation, begun, &answer);
            answer
        })
    }
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measured").field("measurements", &self.measurements).finish_non_exhaustive()
    }
}

macro_rules! measured {
    ($($method:ident($request:ty) -> $reply:ty;)*) => {
        $(fn $method(&self, request: $request) -> Reply<$reply> {
            self.measure(stringify!($method), |below| below.$method(request))
        })*
    };
}

impl Blocker for Measured {
    crate::delegate!(|this| *this.below, except read change info list flush claim invalidate);

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        self.measure(request.change.name(), |below| below.change(request))
    }

    measured! {
        read(ReadRequest) -> ReadReply;
        info(InfoRequest) -> Info;
        list(ListRequest) -> ListReply;
        flush(FlushRequest) -> FlushReply;
        claim(ClaimRequest) -> ClaimReply;
        invalidate(InvalidateRequest) -> InvalidateReply;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;
    use crate::executor::block_on;
    use crate::ext::BlockerExt;
    use crate::memory::Memory;
    use crate::name::ObjectId;
    use parking_lot::Mutex;

    /// A store whose replies to `info` a test sets in advance; each takes one second.
    struct Scripted {
        clock: Arc<ManualClock>,
        answers: Mutex<Vec<Error>>,
        memory: Memory,
    }

    impl Blocker for Scripted {
        crate::delegate!(|this| this.memory, except info);

        fn info(&self, _: InfoRequest) -> Reply<Info> {
            let answer = self.answers.lock().remove(0);
            let clock = Arc::clone(&self.clock);
            Reply::pending(async move {
                clock.advance(Duration::from_secs(1));
                Err(answer)
            })
        }
    }

    fn object() -> ObjectId {
        "a/b".parse().expect("a name")
    }

    #[test]
    fn each_operation_is_counted_under_its_own_name() {
        let store = Measured::new(Arc::new(Memory::default()), "memory", Arc::new(ManualClock::new()));
        block_on(store.put(&object(), b"x")).expect("it is stored");
        block_on(store.get(&object())).expect("it is there");
        let counted: Vec<&str> = store
            .measurements()
            .operations()
            .iter()
            .filter(|one| one.latency.count() == 1 && one.failures == 0)
            .map(|one| one.name)
            .collect();
        assert_eq!(counted, ["read", "write_full"]);
        let families = store.measurements().families();
        let family = families.get("store_request_duration_seconds").expect("the family");
        assert_eq!(family.samples.len(), NAMES.len());
    }

    #[test]
    fn silence_begins_with_the_first_operation_without_an_answer_and_ends_with_an_answer() {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(100));
        let retry = || Error::Retryable("away".into());
        let answers =
            vec![retry(), Error::DeadlinePassed, Error::Missing, retry(), Error::Denied("no".into())];
        let below =
            Scripted { clock: Arc::clone(&clock), answers: Mutex::new(answers), memory: Memory::default() };
        let store = Measured::new(Arc::new(below), "memory", clock);
        let measurements = store.measurements();
        let silence_after_each: Vec<u64> = (0..5)
            .map(|_| {
                let _ = block_on(store.info(InfoRequest::new(object())));
                measurements.silence().as_secs()
            })
            .collect();
        assert_eq!(silence_after_each, [1, 2, 0, 1, 0]);
        let info = measurements.operations().into_iter().find(|one| one.name == "info").expect("info");
        assert_eq!((info.failures, info.latency.count()), (4, 5));
        assert_eq!(info.latency.sum(), Duration::from_secs(5));
    }
}
