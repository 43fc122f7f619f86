//! Operations, and their completions as futures.
//!
//! An operation in flight owns all memory that librados may access: a [`Flight`] holds the handle,
//! the buffer of a read and the permits that limit concurrent operations. librados holds one
//! reference to it, the future another. If the future is dropped, only the result is abandoned; the
//! operation runs to its end, and only then are memory and permits released. The completion arrives
//! on a thread of librados, which records the outcome, wakes the future, and never blocks.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::future::poll_fn;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Poll, Waker};

use blocker::metrics::{Counter, counters};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::IoCtx;
use super::ffi::{Api, COMPARE_GT, CREATE_EXCLUSIVE, FULL_TRY, Handle, ORDER_READS_WRITES, errno};
use crate::config::NOTIFICATIONS_MAX;

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// The number of the result: zero or a positive number for success, otherwise a negative error
    /// number.
    pub(crate) code: i32,
    /// The object's version after the operation.
    pub(crate) version: u64,
}

/// The buffers of a read. librados writes to them until the operation has ended.
#[derive(Default)]
struct Landing {
    buffer: Vec<u8>,
    read_bytes: usize,
    read_code: c_int,
    size_bytes: u64,
    modified: i64,
    stat_code: c_int,
    /// The iterator over the attributes, or `None` for a null pointer.
    iterator: Option<NonNull<c_void>>,
    attributes_code: c_int,
}

/// The result of a read.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) data: Vec<u8>,
    pub(crate) size_bytes: u64,
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Called on librados's thread when a change times out, whether or not a task waits for it.
pub(crate) type OnTimeout = Box<dyn FnOnce() + Send>;

struct Flight {
    ioctx: Arc<IoCtx>,
    landing: UnsafeCell<Landing>,
    state: Mutex<State>,
    on_timeout: Mutex<Option<OnTimeout>>,
    permits: Mutex<Option<Permits>>,
    stats: Arc<Stats>,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

// SAFETY: `landing` is written by librados until the completion, and read by the one waiting call
// after the outcome was published under `state`'s lock; everything else is Sync by itself.
unsafe impl Sync for Flight {}
// SAFETY: nothing in a landing is bound to a thread; the raw iterator handle is used by one thread
// at a time.
unsafe impl Send for Flight {}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(iterator) = self.landing.get_mut().iterator {
            // SAFETY: librados created the iterator for this read, and it has not been ended;
            // `attributes` takes an iterator out before it ends the iterator.
            unsafe { (self.ioctx.api().getxattrs_end)(iterator.as_ptr()) };
        }
    }
}

counters! {
    /// The counters of all operations of a store.
    #[derive(Default)]
    pub(crate) struct Stats {
        /// Operations sent to the cluster.
        pub(crate) begun: Counter => "rados_operations_total",
        pub(crate) ended: Counter,
        /// Operations that timed out.
        pub(crate) timed_out: Counter => "rados_operations_timed_out_total",
        /// Changes that were retried because the object had changed in the meantime.
        pub(crate) retried: Counter => "rados_changes_retried_total",
        /// Objects that have received the attributes of this backend.
        pub(crate) introduced: Counter => "rados_objects_introduced_total",
        /// Objects whose state was read after a change with an unknown outcome.
        pub(crate) settled: Counter => "rados_objects_settled_total",
    }
}

/// The permits of an operation in flight; a notification has none for its few bytes.
struct Permits {
    _op: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

/// The limits of concurrent operations.
#[derive(Clone)]
pub(crate) struct Limits {
    ops: Arc<Semaphore>,
    notifications: Arc<Semaphore>,
    /// The credits, in units of 1 KiB.
    kibibytes: Arc<Semaphore>,
    kibibytes_max: u32,
    pub(crate) stats: Arc<Stats>,
}

impl Limits {
    pub(crate) fn new(ops_max: u32, bytes_max: u64) -> Self {
        let kibibytes_max = u32::try_from(bytes_max >> 10).unwrap_or(u32::MAX).min(1 << 28);
        Self {
            ops: Arc::new(Semaphore::new(ops_max as usize)),
            notifications: Arc::new(Semaphore::new(NOTIFICATIONS_MAX)),
            kibibytes: Arc::new(Semaphore::new(kibibytes_max as usize)),
            kibibytes_max,
            stats: Arc::default(),
        }
    }

    /// Waits for the permits of an operation. Cancel safe: an abandoned wait leaves no trace.
    async fn permits(&self, bytes: usize) -> Permits {
        let kibibytes = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.kibibytes_max);
        // The semaphores are never closed.
        let op = Arc::clone(&self.ops).acquire_owned().await.expect("an open semaphore");
        let bytes = Arc::clone(&self.kibibytes).acquire_many_owned(kibibytes).await;
        Permits { _op: op, _bytes: Some(bytes.expect("an open semaphore")) }
    }

    /// Waits for the permit of a notification, as [`permits`](Self::permits) does.
    async fn notification_permit(&self) -> Permits {
        let permit = Arc::clone(&self.notifications).acquire_owned().await;
        Permits { _op: permit.expect("an open semaphore"), _bytes: None }
    }

    /// Begins a change and waits for its completion. `begun` is called just before the change is
    /// passed to librados.
    pub(crate) async fn change(
        &self,
        ioctx: &Arc<IoCtx>,
        object: &CStr,
        op: WriteOp,
        on_timeout: Option<OnTimeout>,
        begun: impl FnOnce(),
    ) -> Outcome {
        let permits = self.permits(op.payload_bytes).await;
        begun();
        let flight = self.flight(ioctx, Landing::default(), permits, on_timeout);
        flight.start(|api, completion| {
            // SAFETY: all handles are live; the name is copied; a null time means now. librados
            // takes the steps over, so that the operation may be released right after.
            unsafe {
                (api.aio_write_op_operate)(
                    op.raw,
                    ioctx.raw(),
                    completion,
                    object.as_ptr(),
                    ptr::null(),
                    FULL_TRY,
                )
            }
        });
        drop(op);
        flight.outcome().await
    }

    /// Begins a read and waits for its completion.
    pub(crate) async fn read(&self, ioctx: &Arc<IoCtx>, object: &CStr, op: ReadOp) -> (Outcome, Found) {
        let permits = self.permits(op.range.1).await;
        let landing = Landing { buffer: Vec::with_capacity(op.range.1), ..Landing::default() };
        let flight = self.flight(ioctx, landing, permits, None);
        flight.start_read(ioctx, object, &op);
        let outcome = flight.outcome().await;
        (outcome, flight.found(outcome, &op))
    }

    /// Notifies the watchers of `object`, and waits until they have acknowledged or the timeout has
    /// passed. A notification that has begun goes on if the future is dropped.
    pub(crate) async fn notify(
        &self,
        ioctx: &Arc<IoCtx>,
        object: &CStr,
        text: &[u8],
        timeout_ms: u64,
    ) -> Outcome {
        let permits = self.notification_permit().await;
        let flight = self.flight(ioctx, Landing::default(), permits, None);
        let len = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
        flight.start(|api, completion| {
            // SAFETY: all handles are live; name and text are copied; no reply is asked for.
            unsafe {
                (api.aio_notify)(
                    ioctx.raw(),
                    object.as_ptr(),
                    completion,
                    text.as_ptr().cast(),
                    len,
                    timeout_ms,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            }
        });
        flight.outcome().await
    }

    fn flight(
        &self,
        ioctx: &Arc<IoCtx>,
        landing: Landing,
        permits: Permits,
        on_timeout: Option<OnTimeout>,
    ) -> Arc<Flight> {
        Arc::new(Flight {
            ioctx: Arc::clone(ioctx),
            landing: UnsafeCell::new(landing),
            state: Mutex::default(),
            on_timeout: Mutex::new(on_timeout),
            permits: Mutex::new(Some(permits)),
            stats: Arc::clone(&self.stats),
        })
    }
}

impl Flight {
    /// Passes the operation to librados together with a reference to this flight. If the operation
    /// cannot begin, the error becomes its outcome.
    fn start(self: &Arc<Self>, begin: impl FnOnce(&Api, Handle) -> c_int) {
        let api = self.ioctx.api();
        let mut completion = ptr::null_mut();
        let counted = Arc::into_raw(Arc::clone(self));
        // SAFETY: `completed` takes exactly this argument, and is called once if the operation
        // begins.
        let made = unsafe {
            (api.aio_create_completion2)(counted.cast_mut().cast::<c_void>(), completed, &mut completion)
        };
        assert!(made >= 0, "librados makes a completion or runs out of memory");
        self.stats.begun.increment();
        let code = begin(api, completion);
        if code < 0 {
            // SAFETY: the operation has not begun, so the callback never runs: its reference and
            // the completion belong to this function.
            unsafe {
                (api.aio_release)(completion);
                drop(Arc::from_raw(counted));
            }
            self.stats.ended.increment();
            self.state.lock().outcome = Some(Outcome { code, version: 0 });
        }
    }

    /// Waits for the completion of the operation. Dropping the future abandons the result, not the
    /// operation.
    async fn outcome(&self) -> Outcome {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match state.outcome {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn start_read(self: &Arc<Self>, ioctx: &IoCtx, object: &CStr, op: &ReadOp) {
        let api = ioctx.api();
        let landing = self.landing.get();
        let flags = if op.ordered { ORDER_READS_WRITES } else { 0 };
        // SAFETY: librados writes the steps' results into the landing. The reference that librados
        // holds to the flight keeps the landing alive and at its address until the operation has
        // ended; no other thread reads the landing until then. The buffer has room for the
        // requested range. librados copies names and values.
        unsafe {
            let raw = (api.create_read_op)();
            assert!(!raw.is_null(), "librados has no memory left");
            if let Some((name, value)) = op.above {
                (api.read_op_cmpxattr)(raw, name.as_ptr(), COMPARE_GT, value.as_ptr().cast(), value.len());
            }
            if let Some(version) = op.version {
                (api.read_op_assert_version)(raw, version);
            }
            if op.stat {
                (api.read_op_stat)(
                    raw,
                    &raw mut (*landing).size_bytes,
                    &raw mut (*landing).modified,
                    &raw mut (*landing).stat_code,
                );
            }
            if op.attributes {
                (api.read_op_getxattrs)(
                    raw,
                    (&raw mut (*landing).iterator).cast::<Handle>(),
                    &raw mut (*landing).attributes_code,
                );
            }
            // librados treats a length of 0 as the whole object.
            if op.range.1 > 0 {
                let buffer = (*landing).buffer.as_mut_ptr().cast::<c_char>();
                (api.read_op_read)(
                    raw,
                    op.range.0,
                    op.range.1,
                    buffer,
                    &raw mut (*landing).read_bytes,
                    &raw mut (*landing).read_code,
                );
            }
            self.start(|api, completion| {
                (api.aio_read_op_operate)(raw, ioctx.raw(), completion, object.as_ptr(), flags)
            });
            (api.release_read_op)(raw);
        }
    }

    /// Returns the result of the read. Called once, by the waiting task, after the completion.
    fn found(&self, outcome: Outcome, op: &ReadOp) -> Found {
        if outcome.code < 0 {
            return Found::default();
        }
        // SAFETY: the operation has ended, so librados no longer uses the landing; otherwise only
        // `drop` accesses it.
        let landing = unsafe { &mut *self.landing.get() };
        let mut data = std::mem::take(&mut landing.buffer);
        if op.range.1 > 0 && landing.read_code >= 0 {
            let len = landing.read_bytes.min(data.capacity());
            // SAFETY: librados has written this number of bytes, from the buffer's start, within
            // its capacity.
            unsafe { data.set_len(len) };
        }
        let attributes = if op.attributes { self.attributes(landing) } else { Vec::new() };
        Found { data, size_bytes: landing.size_bytes, attributes }
    }

    fn attributes(&self, landing: &mut Landing) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        let Some(iterator) = landing.iterator.take() else { return all };
        let iterator = iterator.as_ptr();
        let api = self.ioctx.api();
        loop {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            // SAFETY: the iterator is live until `getxattrs_end` below; the places are written.
            let code = unsafe { (api.getxattrs_next)(iterator, &mut name, &mut value, &mut len) };
            if code < 0 || name.is_null() {
                break;
            }
            // SAFETY: librados gives a C string, which lives until the iterator is ended.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes().to_vec();
            let value = if value.is_null() || len == 0 {
                Vec::new()
            } else {
                // SAFETY: librados gives this number of bytes, which live until the iterator is
                // ended.
                unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) }.to_vec()
            };
            all.push((name, value));
        }
        // SAFETY: the iterator is ended once, because the landing no longer refers to it.
        unsafe { (api.getxattrs_end)(iterator) };
        all
    }
}

/// The completion callback, which librados calls.
unsafe extern "C" fn completed(completion: Handle, arg: *mut c_void) {
    // SAFETY: `start` has handed over one count, and this is called once.
    let flight = unsafe { Arc::from_raw(arg.cast_const().cast::<Flight>()) };
    let api = flight.ioctx.api();
    // SAFETY: the completion is live until it is released, here; the operation has ended.
    let outcome = unsafe {
        let code = (api.aio_get_return_value)(completion);
        let version = (api.aio_get_version)(completion);
        (api.aio_release)(completion);
        Outcome { code, version }
    };
    let stats = &flight.stats;
    stats.ended.increment();
    if outcome.code == errno::TIMEDOUT {
        stats.timed_out.increment();
        if let Some(notify) = flight.on_timeout.lock().take() {
            notify();
        }
    }
    drop(flight.permits.lock().take());
    let waker = {
        let mut state = flight.state.lock();
        state.outcome = Some(outcome);
        state.waker.take()
    };
    waker.into_iter().for_each(Waker::wake);
}

// ---- operations, whose steps RADOS applies to one object atomically
//
// librados copies every argument into the operation when a step is added, except the destinations
// of reads, which are in the `Landing`.

/// The steps of a change, in the order in which they are applied. If a step fails, none of them has
/// an effect.
pub(crate) struct WriteOp {
    api: Arc<Api>,
    raw: Handle,
    payload_bytes: usize,
}

// SAFETY: librados binds an operation to no thread; only one has this one at a time.
unsafe impl Send for WriteOp {}

fn pointer(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

impl WriteOp {
    pub(crate) fn new(api: &Arc<Api>) -> Self {
        // SAFETY: no arguments.
        let raw = unsafe { (api.create_write_op)() };
        assert!(!raw.is_null(), "librados has no memory left");
        Self { api: Arc::clone(api), raw, payload_bytes: 0 }
    }
}

/// Generates the methods that add a step to a change, each by one function of librados, with the
/// number of payload bytes that the step sends.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*)
        => $function:ident($($value:expr),*), $payload:expr;)*) => {
        impl WriteOp {
            $($(#[$doc])*
            pub(crate) fn $name(mut self $(, $arg: $type)*) -> Self {
                // SAFETY: the operation is live and only this thread has it. Names, values and
                // bytes live during the call, and librados copies them. A null pointer means no
                // category, or a result that only the whole operation reports.
                unsafe { (self.api.$function)(self.raw $(, $value)*) };
                self.payload_bytes += $payload;
                self
            })*
        }
    };
}

steps! {
    /// Fails with ECANCELED unless the comparison of `value` with the attribute's value holds, and
    /// with ENOENT if the object does not exist.
    compare(name: &CStr, comparison: u8, value: &[u8])
        => write_op_cmpxattr(name.as_ptr(), comparison, pointer(value), value.len()), 0;
    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    assert_version(version: u64) => write_op_assert_version(version), 0;
    /// Fails with `MISMATCH` minus the offset of the first differing byte.
    compare_bytes(offset: u64, expected: &[u8])
        => write_op_cmpext(pointer(expected), expected.len(), offset, ptr::null_mut()), expected.len();
    /// Fails with EEXIST if the object exists.
    create() => write_op_create(CREATE_EXCLUSIVE, ptr::null()), 0;
    set(name: &CStr, value: &[u8])
        => write_op_setxattr(name.as_ptr(), pointer(value), value.len()), 0;
    unset(name: &CStr) => write_op_rmxattr(name.as_ptr()), 0;
    write(offset: u64, data: &[u8])
        => write_op_write(pointer(data), data.len(), offset), data.len();
    write_full(data: &[u8]) => write_op_write_full(pointer(data), data.len()), data.len();
    /// Zeroes a range. Beware: a range that reaches the object's end truncates the object.
    zero(offset: u64, len_bytes: u64) => write_op_zero(offset, len_bytes), 0;
    truncate(size_bytes: u64) => write_op_truncate(size_bytes), 0;
    remove() => write_op_remove(), 0;
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once. librados took over the steps when the operation
        // began.
        unsafe { (self.api.release_write_op)(self.raw) };
    }
}

/// The parts of an atomic read.
#[derive(Default)]
pub(crate) struct ReadOp {
    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    pub(crate) version: Option<u64>,
    /// Fails with ECANCELED unless the value is above the attribute's.
    pub(crate) above: Option<(&'static CStr, &'static [u8])>,
    /// Whether to read the size.
    pub(crate) stat: bool,
    /// Offset and length of a range; a length of 0 reads nothing.
    pub(crate) range: (u64, usize),
    /// Whether to read all attributes.
    pub(crate) attributes: bool,
    /// Whether to wait for earlier changes.
    pub(crate) ordered: bool,
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn notifications_that_take_long_keep_no_operation_waiting() {
        let limits = Limits::new(1, 1024);
        let under_way: Vec<Permits> =
            std::iter::from_fn(|| limits.notification_permit().now_or_never()).collect();
        assert_eq!(under_way.len(), NOTIFICATIONS_MAX);
        assert!(limits.permits(1024).now_or_never().is_some());
    }
}
