//! Changing objects and storing the changes: the three write paths (write-back, write-through and
//! write-around), copies, payloads received into buckets, and flushes together with the log's
//! requirements on them. The transitions of an object's state are in `state/`.

pub(crate) mod apply;
pub(crate) mod back;
pub(crate) mod copy;
pub(crate) mod flush;
pub(crate) mod log_space;
pub(crate) mod receive;
pub(crate) mod scope_ops;
pub(crate) mod through;

use blocker::{Error, FlushRequest, Namespace, Result, Scope, Timestamp, WriteMode};

use crate::object::control::records::NamespaceRecord;
use crate::object::journal::ChangeLog;
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::tasks::Task;
use crate::object::tasks::deadline::until;
use crate::object::tasks::wait_queue::wait;
use crate::sync::{Arc, Ordering};

// The write mode that a change takes when it begins, and the completion of changes that began in
// an earlier mode.
//
// A new mode takes effect at once. A change that began earlier continues in its own mode, which is
// safe alongside the new one: a change that goes to the store locks the whole object if it finds
// dirty data there, and waits until they are stored; a change that is applied in the cache waits
// for changes in flight to the store.

/// The mode of a change that may wait; the change is counted until this is dropped.
pub(crate) struct TakenMode {
    shared: Arc<Shared>,
    number: u16,
    phase: u64,
    pub(crate) mode: WriteMode,
    /// Whether the change bypasses the cache regardless of the mode.
    pub(crate) is_passing: bool,
}

impl TakenMode {
    /// Returns the mode that determines how the cache is updated.
    pub(crate) fn keeping(&self) -> WriteMode {
        if self.is_passing { WriteMode::Around } else { self.mode }
    }

    /// Takes the current mode of a namespace.
    pub(crate) fn take(shared: &Arc<Shared>, namespace: &Namespace) -> Self {
        let number = shared.control.namespaces.of(namespace);
        let (phase, mode) = shared.control.namespaces.record(number).write_phases.begin();
        Self { shared: Arc::clone(shared), number, phase, mode, is_passing: false }
    }
}

impl Drop for TakenMode {
    fn drop(&mut self) {
        self.shared.control.namespaces.record(self.number).write_phases.end(self.phase);
    }
}

/// Returns the error of a change to a read-only namespace.
pub(crate) fn read_only(namespace: &Namespace) -> Error {
    Error::Denied(format!("namespace {namespace} is read-only").into())
}

/// A caller that waits until all changes of an earlier mode are completed. If the wait fails or is
/// dropped, the background continues the work.
pub(crate) struct Settling {
    shared: Arc<Shared>,
    number: u16,
    deadline: Option<Timestamp>,
    has_ended: bool,
}

impl Settling {
    pub(crate) fn begin(shared: &Arc<Shared>, number: u16, deadline: Option<Timestamp>) -> Self {
        Self { shared: Arc::clone(shared), number, deadline, has_ended: false }
    }

    /// Waits until the earlier mode is settled; see [`settle`].
    pub(crate) async fn end(mut self) -> Result<()> {
        let settled = settle(&self.shared, self.number, self.deadline).await;
        self.has_ended = settled.is_ok();
        settled
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if !self.has_ended {
            settle_in_background(&self.shared);
        }
    }
}

/// Waits until an earlier mode of a namespace is settled: all changes that began in the mode have
/// ended, and all written-back data are stored. The number
/// [`OTHERS`](crate::object::config::OTHERS) stands for all other namespaces together.
///
/// Nothing is undone if this fails or is dropped: the new mode stays in force, the rest is stored
/// in the background, and this can be called again.
///
/// # Errors
/// `NotStored` if the deadline passes first; errors of a flush.
pub(crate) async fn settle(shared: &Arc<Shared>, number: u16, deadline: Option<Timestamp>) -> Result<()> {
    let record = shared.control.namespaces.record(number);
    let late = || Error::NotStored(still_left(shared, record).into());
    until(&*shared.clock, deadline, late, settle_all_of(shared, number)).await
}

fn still_left(shared: &Shared, record: &NamespaceRecord) -> String {
    let what = record.name.as_ref().map_or_else(|| "other namespaces".to_owned(), ToString::to_string);
    let dirty = record.dirty_taken.load(Ordering::SeqCst) * blocker::BUCKET_BYTES;
    let failing = match shared.store.failing.load(Ordering::Relaxed) {
        0 => "",
        _ => "; flushes are failing",
    };
    format!(
        "the write mode of {what} is {}, but {dirty} bytes written in the previous mode are not stored \
         yet{failing}; they continue to be stored in the background",
        record.write_phases.mode()
    )
}

/// Waits for the end of every change of a namespace that began in an earlier mode; returns the
/// current phase.
async fn end_changes(shared: &Arc<Shared>, number: u16) -> Result<u64> {
    let phases = &shared.control.namespaces.record(number).write_phases;
    let phase = phases.phase();
    let ended = || phases.have_ended_before(phase).then_some(());
    wait(&phases.waiters, ended).await?;
    Ok(phase)
}

/// Waits until a namespace has no dirty data; the current mode of the namespace creates none. Dirty
/// data from the previous mode are discarded.
///
/// # Errors
/// `Retryable` if too many tasks are waiting, `Unsupported` if the background of the cache has
/// ended.
pub(crate) async fn discard_left(shared: &Arc<Shared>, namespace: &Namespace, number: u16) -> Result<()> {
    let phase = end_changes(shared, number).await?;
    end_sections(shared, Some(number)).await;
    let scope = Scope::Namespace(namespace.clone());
    // Discarded data are reported as not stored; in the end there is nothing to store.
    while let Err(error) = scope_ops::store_scope(shared, &scope, &Arc::default()).await {
        if !matches!(error, Error::NotStored(_)) {
            return Err(error);
        }
    }
    shared.control.namespaces.record(number).write_phases.note_stored(phase);
    Ok(())
}

async fn settle_all_of(shared: &Arc<Shared>, number: u16) -> Result<()> {
    let phases = &shared.control.namespaces.record(number).write_phases;
    let phase = end_changes(shared, number).await?;
    if !phases.has_dirty_left() {
        return Ok(());
    }
    end_sections(shared, Some(number)).await;
    let stored = match &shared.control.namespaces.record(number).name {
        Some(namespace) => store_and_mark(shared, namespace).await,
        None => scope_ops::flush(Arc::clone(shared), FlushRequest::new(Scope::All)).await.map(|_| ()),
    };
    // Lost writes are recorded as losses, and are no longer dirty.
    if matches!(stored, Ok(()) | Err(Error::WritesLost(_))) {
        phases.note_stored(phase);
    }
    stored
}

/// Waits for the end of every exclusive section that has begun, of the objects of a namespace or,
/// with `None`, of all objects: a section that begins later sees the current mode and epochs.
pub(crate) async fn end_sections(shared: &Arc<Shared>, number: Option<u16>) {
    let mut handles = Vec::new();
    shared.for_each(|in_use| {
        if number.is_none_or(|number| shared.objects.index.namespace_of(in_use.at) == number) {
            handles.push(Handle::of(shared, shared.objects.index.use_again(in_use.at)));
        }
    });
    for handle in handles {
        handle.enter(|_, _| ()).await;
    }
}

/// Stores all data of a namespace, and makes a mark durable so that none of it is replayed.
pub(crate) async fn store_and_mark(shared: &Arc<Shared>, namespace: &Namespace) -> Result<()> {
    let up_to = shared.journal.log.as_ref().map(ChangeLog::last_position);
    let request = FlushRequest::new(Scope::Namespace(namespace.clone()));
    scope_ops::flush(Arc::clone(shared), request).await?;
    match up_to {
        Some(up_to) => log_waits::mark_namespace(shared, namespace, up_to).await,
        None => Ok(()),
    }
}

/// Makes the background settle every namespace whose earlier mode is not settled yet.
pub(crate) fn settle_in_background(shared: &Shared) {
    shared.control.namespaces.asks_to_settle.store(true, Ordering::SeqCst);
    shared.background.wake();
}

/// Returns a task for each namespace that the background must settle and that has no such task yet.
pub(crate) fn settling_tasks(shared: &Arc<Shared>) -> Vec<Task> {
    let asked = &shared.control.namespaces.asks_to_settle;
    if !asked.load(Ordering::Relaxed) || !asked.swap(false, Ordering::SeqCst) {
        return Vec::new();
    }
    let task = |record: &NamespaceRecord| -> Option<Task> {
        let begins = record.write_phases.is_changing() && !record.is_settling.swap(true, Ordering::SeqCst);
        begins.then(|| -> Task { Box::pin(settle_until_done(Arc::clone(shared), record.number)) })
    };
    shared.control.namespaces.records().filter_map(task).collect()
}

async fn settle_until_done(shared: Arc<Shared>, number: u16) {
    let record = shared.control.namespaces.record(number);
    while record.write_phases.is_changing() {
        match settle(&shared, number, None).await {
            Ok(()) => {}
            // Refused changes are retried too, like their flushes.
            Err(Error::Retryable(_) | Error::NotStored(_)) => {
                let (_, delay) = shared.control.live.retry_delays();
                shared.clock.sleep_until(shared.clock.now() + delay).await;
            }
            Err(error @ Error::WritesLost(_)) => {
                tracing::warn!(%error, "a namespace whose write mode has changed has lost writes");
            }
            Err(error) => {
                tracing::warn!(%error, "changes made in an earlier write mode cannot be completed");
                record.is_settling.store(false, Ordering::SeqCst);
                return;
            }
        }
    }
    record.is_settling.store(false, Ordering::SeqCst);
    if record.write_phases.is_changing() {
        // The mode was changed again after the last check, while this task was still counted.
        settle_in_background(&shared);
    }
}
