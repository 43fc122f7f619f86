//! librados as futures and handles that own their memory: all `unsafe` code of this crate is here.
//! This module does not know how the contract's objects are represented.
//!
//! The connection is one `rados_t`, with a handle for each RADOS namespace. Handles outlive every
//! operation that was begun on them, because each operation holds a reference. The last reference
//! may be dropped on one of librados's own threads, which must not destroy handles or the
//! connection. So an unused handle is only set aside, and the connection is closed on a separate
//! thread. A process that exits waits for such threads, because librados fails if its statics are
//! destroyed before they end.

pub(crate) mod aio;
pub(crate) mod ffi;
pub(crate) mod watch;

use std::ffi::{CStr, CString, c_char};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use blocker::{Error, Result};
use named_file::{Kinds, NamedFile};
use parking_lot::{Condvar, Mutex};

use crate::config::RadosConfig;
use ffi::{Api, Handle, errno};

/// A handle of librados that may be used and moved between threads.
struct Shared(Handle);

// SAFETY: librados's cluster and io handles may be used from any thread, by several concurrently
// (librados.h, "thread safety"); the one exception, changing an io handle's settings, happens
// before it is shared.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A connection to a cluster.
pub(crate) struct Cluster {
    pub(crate) api: Arc<Api>,
    handle: Shared,
    /// Unused handles that wait to be destroyed.
    retired: Mutex<Vec<Shared>>,
    /// Set when the connection has been closed.
    closed: Arc<Closed>,
}

/// Whether a connection has been closed.
#[derive(Default)]
pub(crate) struct Closed {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Closed {
    /// Waits for at most `timeout` until the connection is closed. Returns whether it is closed.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut done = self.done.lock();
        if !*done {
            self.changed.wait_for(&mut done, timeout);
        }
        *done
    }
}

/// The number of connections being closed.
static CLOSING: Mutex<usize> = Mutex::new(0);
static CLOSING_CHANGED: Condvar = Condvar::new();
/// The maximum time that the process's exit waits for connections to close.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// Runs when the process exits, before librados's statics are destroyed: handlers run in reverse
/// order, and this one is registered after librados was loaded.
extern "C" fn wait_for_closing() {
    let until = Instant::now() + EXIT_PATIENCE;
    let mut closing = CLOSING.lock();
    while *closing > 0 && !CLOSING_CHANGED.wait_until(&mut closing, until).timed_out() {}
}

fn wait_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler may run at any time. If it cannot be registered, the process ends as
        // it would without the handler.
        let _ = unsafe { libc::atexit(wait_for_closing) };
    });
}

fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Invalid(format!("{what} must not contain a NUL byte").into()))
}

impl Cluster {
    /// Connects. Blocks at most for the configured time.
    ///
    /// # Errors
    /// Fails if the library, the configuration file, the keyring or the monitor is missing; the
    /// error is one line that names the missing one.
    pub(crate) fn connect(config: &RadosConfig) -> Result<Arc<Self>> {
        let api = Arc::new(Api::load()?);
        wait_at_exit();
        let user = c_string("user", &format!("client.{}", config.user))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both strings end in NUL and live during the call; `handle` is written before it
        // is read.
        let made = unsafe { (api.create2)(&mut handle, c"ceph".as_ptr(), user.as_ptr(), 0) };
        if made < 0 {
            return Err(Error::Denied(format!("librados cannot create a client: {}", describe(made)).into()));
        }
        let cluster = Self { api, handle: Shared(handle), retired: Mutex::default(), closed: Arc::default() };
        cluster.configure(config)?;
        // SAFETY: the handle is configured and not connected yet.
        let connected = unsafe { (cluster.api.connect)(cluster.handle.0) };
        if connected < 0 {
            return Err(refused(config, connected));
        }
        Ok(Arc::new(cluster))
    }

    fn configure(&self, config: &RadosConfig) -> Result<()> {
        let file =
            config.conf_file.as_ref().map(|path| c_string("conf", &path.to_string_lossy())).transpose()?;
        let path = file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
        // SAFETY: the path is null (the usual places are tried) or ends in NUL and lives during the
        // call.
        let read = unsafe { (self.api.conf_read_file)(self.handle.0, path) };
        if read < 0 {
            let which =
                config.conf_file.as_ref().map_or("ceph.conf in any of the usual places".into(), |path| {
                    format!("the configuration file {}", path.display())
                });
            let why = format!("{which} cannot be read ({}); name a file with conf=FILE", describe(read));
            return Err(Error::Invalid(why.into()));
        }
        for (key, value) in config.options() {
            let (name, text) = (c_string("an option", &key)?, c_string(&key, &value)?);
            // SAFETY: both strings end in NUL and live during the call.
            let set = unsafe { (self.api.conf_set)(self.handle.0, name.as_ptr(), text.as_ptr()) };
            if set < 0 {
                return Err(Error::Invalid(format!("librados does not accept {key} = {value}").into()));
            }
        }
        Ok(())
    }

    /// Returns the pool's current number; asks the monitor if it is unknown. Blocks.
    ///
    /// # Errors
    /// Returns `Missing` if the pool does not exist; `Retryable`.
    pub(crate) fn find_pool(&self, name: &str) -> Result<i64> {
        let name = c_string("pool", name)?;
        // SAFETY: the name ends in NUL and lives during the call.
        match unsafe { (self.api.pool_lookup)(self.handle.0, name.as_ptr()) } {
            pool if pool >= 0 => Ok(pool),
            missing if missing == i64::from(errno::NOENT) => Err(Error::Missing),
            failed => Err(Error::Retryable(describe(failed as i32).into())),
        }
    }

    /// Returns whether the locally known map has the pool. Does not block.
    pub(crate) fn has_pool(&self, pool: i64) -> bool {
        let mut name = [0_u8; 256];
        // SAFETY: the buffer has the length that is passed.
        let found = unsafe {
            (self.api.pool_reverse_lookup)(
                self.handle.0,
                pool,
                name.as_mut_ptr().cast::<c_char>(),
                name.len(),
            )
        };
        // A pool whose name is longer than the buffer exists too.
        found != errno::NOENT
    }

    /// Fetches the newest map of the cluster, with the OSDs' addresses, from a monitor. Blocks.
    pub(crate) fn refresh(&self) {
        // SAFETY: the handle is live. If it fails, the next timeout tries again.
        unsafe { (self.api.wait_for_latest_osdmap)(self.handle.0) };
    }

    /// Opens a handle for one RADOS namespace of a pool.
    ///
    /// # Errors
    /// Returns `Missing` if the pool no longer exists.
    pub(crate) fn open(self: &Arc<Self>, pool: i64, namespace: &CStr) -> Result<Arc<IoCtx>> {
        self.bury();
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written before it is read.
        let made = unsafe { (self.api.ioctx_create2)(self.handle.0, pool, &mut handle) };
        match made {
            0.. => {}
            errno::NOENT => return Err(Error::Missing),
            _ => return Err(Error::Retryable(describe(made).into())),
        }
        // SAFETY: no other thread knows the handle yet; the string is copied.
        unsafe { (self.api.ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Arc::new(IoCtx { cluster: Arc::clone(self), handle: Shared(handle), pool }))
    }

    /// Frees the handles that were set aside.
    fn bury(&self) {
        for handle in std::mem::take(&mut *self.retired.lock()) {
            // SAFETY: the drop of its only owner set the handle aside, and only this thread has
            // taken it out of the list.
            unsafe { (self.api.ioctx_destroy)(handle.0) };
        }
    }

    pub(crate) fn closed(&self) -> Arc<Closed> {
        Arc::clone(&self.closed)
    }

    pub(crate) fn raw(&self) -> Handle {
        self.handle.0
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let retired = std::mem::take(self.retired.get_mut());
        let (api, handle, closed) = (Arc::clone(&self.api), Shared(self.handle.0), Arc::clone(&self.closed));
        let close = move || {
            // The values are moved as a whole, so that the closure captures the `Send` wrappers,
            // not the bare pointers in them.
            let (handle, retired) = (handle, retired);
            for each in retired {
                // SAFETY: as in `bury`.
                unsafe { (api.ioctx_destroy)(each.0) };
            }
            // SAFETY: every operation holds a reference to the cluster, so no operation is in
            // flight and no thread uses the handle.
            unsafe { (api.shutdown)(handle.0) };
            *closed.done.lock() = true;
            closed.changed.notify_all();
            *CLOSING.lock() -= 1;
            CLOSING_CHANGED.notify_all();
        };
        *CLOSING.lock() += 1;
        // The connection is closed on another thread, because this thread may be one of librados's.
        // If no thread can be started, the connection stays open until the process ends.
        if std::thread::Builder::new().name("rados-close".into()).spawn(close).is_err() {
            *CLOSING.lock() -= 1;
        }
    }
}

/// A pool seen through one RADOS namespace.
pub(crate) struct IoCtx {
    pub(crate) cluster: Arc<Cluster>,
    handle: Shared,
    pub(crate) pool: i64,
}

impl IoCtx {
    pub(crate) fn raw(&self) -> Handle {
        self.handle.0
    }

    pub(crate) fn api(&self) -> &Api {
        &self.cluster.api
    }
}

impl Drop for IoCtx {
    fn drop(&mut self) {
        self.cluster.retired.lock().push(Shared(self.handle.0));
    }
}

/// Describes an error number of librados for people.
pub(crate) fn describe(code: i32) -> String {
    std::io::Error::from_raw_os_error(-code).to_string()
}

/// Returns a problem with the configured keyring, if it can be detected locally.
fn wrong_keyring(config: &RadosConfig) -> Option<String> {
    let path = config.keyring.as_ref()?;
    let text = match named_file::open(path, Kinds::Regular).and_then(NamedFile::text) {
        Ok(text) => text,
        Err(error) => return Some(format!("the keyring {} cannot be read: {error}", path.display())),
    };
    let section = format!("[client.{}]", config.user);
    let has_user = text.lines().any(|line| line.trim() == section);
    (!has_user).then(|| format!("the keyring {} has no key for client.{}", path.display(), config.user))
}

/// Returns the reason why connecting failed, and what to check.
fn refused(config: &RadosConfig, code: i32) -> Error {
    let user = &config.user;
    let denied = |why: String| Error::Denied(wrong_keyring(config).unwrap_or(why).into());
    match code {
        errno::TIMEDOUT => {
            let timeout = config.connect_timeout;
            let text = format!(
                "no monitor has responded within {timeout:?}; check that the cluster is up and mon_host is right"
            );
            Error::Retryable(text.into())
        }
        errno::NOENT => {
            denied(format!("there is no keyring with a key for client.{user}; name one with keyring=FILE"))
        }
        errno::PERM | errno::ACCES | errno::OPNOTSUPP => denied(format!(
            "the cluster does not accept client.{user} ({}): there is no such user, or its key differs; \
             check user and keyring",
            describe(code)
        )),
        // The keyring was found, but is not valid.
        errno::IO | errno::INVAL => {
            let text = format!(
                "the keyring has no readable key for client.{user}; `ceph auth get client.{user}` prints \
                 the right one"
            );
            Error::Denied(text.into())
        }
        _ => Error::Retryable(format!("the cluster cannot be reached: {}", describe(code)).into()),
    }
}

/// Calls `visit` with the name and namespace of every RADOS object, until `visit` returns false.
pub(crate) fn each_name(
    ioctx: &IoCtx,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> std::result::Result<(), i32> {
    let api = ioctx.api();
    let mut list: Handle = std::ptr::null_mut();
    // SAFETY: the handle is live; `list` is written.
    let opened = unsafe { (api.nobjects_list_open)(ioctx.raw(), &mut list) };
    if opened < 0 {
        return Err(opened);
    }
    let ended = loop {
        let (mut entry, mut key, mut namespace) = (std::ptr::null(), std::ptr::null(), std::ptr::null());
        let (mut entry_len, mut key_len, mut namespace_len) = (0, 0, 0);
        // SAFETY: the list is open; all places are written when 0 is returned.
        let code = unsafe {
            (api.nobjects_list_next2)(
                list,
                &mut entry,
                &mut key,
                &mut namespace,
                &mut entry_len,
                &mut key_len,
                &mut namespace_len,
            )
        };
        match code {
            errno::NOENT => break Ok(()),
            code if code < 0 => break Err(code),
            _ => {}
        }
        let bytes = |start: *const std::ffi::c_char, len: usize| {
            if start.is_null() || len == 0 {
                &[][..]
            } else {
                // SAFETY: librados gives this number of bytes, which live until the next call with
                // this list.
                unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }
            }
        };
        if !visit(bytes(entry, entry_len), bytes(namespace, namespace_len)) {
            break Ok(());
        }
    };
    // SAFETY: the list was opened above, and is closed once.
    unsafe { (api.nobjects_list_close)(list) };
    ended
}

// ---- threads for librados calls without an asynchronous form

const THREADS: usize = 2;
/// The maximum number of queued jobs; further jobs are refused with `Retryable`.
const QUEUE_JOBS_MAX: usize = 64;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The threads' queue. When it is dropped, each thread ends after its current job.
pub(crate) struct Worker {
    jobs: SyncSender<Job>,
}

impl Worker {
    pub(crate) fn start() -> Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE_JOBS_MAX);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let queue = Arc::clone(&queue);
            let spawned = std::thread::Builder::new().name("rados-list".into()).spawn(move || work(&queue));
            spawned.map_err(|error| {
                Error::Retryable(format!("cannot start a thread for listings: {error}").into())
            })?;
        }
        Ok(Self { jobs })
    }

    /// Runs `job` on a thread.
    ///
    /// # Errors
    /// Returns `Retryable` if the queue is full.
    pub(crate) fn run(&self, job: Job) -> Result<()> {
        self.jobs.try_send(job).map_err(|_| Error::Retryable("too many listings at once".into()))
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is released before the job runs.
        let job = queue.lock().recv();
        let Ok(job) = job else { return };
        job();
    }
}
