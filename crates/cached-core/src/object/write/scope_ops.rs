//! Operations on scopes (flush, claim, invalidate), and reading an object's head.

use blocker::{
    ClaimReply, ClaimRequest, Durability, Error, FlushReply, FlushRequest, Info, InfoRequest,
    InvalidateReply, InvalidateRequest, Namespace, Result, Scope, WriteMode,
};
use cached_journal::Position;

use super::end_sections;
use crate::object::config::OTHERS;
use crate::object::journal::{ChangeLog, JournalState};
use crate::object::read::load::load_head;
use crate::object::shared::calls::expedite;
use crate::object::shared::claim::{ask_epoch, drop_clean};
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::store::epochs::Own;
use crate::object::tasks::deadline::{FlushTicket, Stored, until};
use crate::sync::Arc;

/// Returns the size, version and stamp, and asks the store for those that are unknown.
pub(crate) async fn info(shared: Arc<Shared>, request: InfoRequest, hash: u64) -> Result<Info> {
    let call = request.call;
    let work = async {
        let handle = Handle::acquire(&shared, &request.object, hash).await?;
        loop {
            if let Some(info) = handle.enter(|object, _| object.info()).await {
                return info;
            }
            load_head(&handle, call).await?;
        }
    };
    until(&*shared.clock, call.deadline, || Error::DeadlinePassed, work).await
}

/// Stores everything acknowledged within the scope.
pub(crate) async fn flush(shared: Arc<Shared>, request: FlushRequest) -> Result<FlushReply> {
    let ticket = Arc::new(FlushTicket::default());
    let late = || Error::NotStored(ticket.why());
    let deadline = request.call.deadline;
    if deadline.is_some_and(|deadline| shared.clock.now() >= deadline) {
        return Err(Error::NotStored("the deadline passed before the flush began".into()));
    }
    let work = async {
        if request.durability <= Durability::Journaled
            && !shared.stores_if_journaled()
            && let Some(reply) = flush_log(&shared, &request).await?
        {
            return Ok(reply);
        }
        // An object that cannot be recovered does not prevent the rest from being stored.
        let recovered = log_waits::scope_recovered(&shared, &request.scope).await;
        let up_to = shared.journal.log.as_ref().map(ChangeLog::last_position);
        store_scope(&shared, &request.scope, &ticket).await?;
        // Forwarded changes may not be durable in the store either.
        flush_below(&shared, &request).await?;
        log_waits::not_draining(&shared.journal, request.scope.namespace()).await?;
        recovered?;
        if let (Some(log), Some(up_to)) = (&shared.journal.log, up_to) {
            mark_stored(&shared, log, &request.scope, up_to);
        }
        shared.objects.losses.check(&request.scope)?;
        Ok(FlushReply::new(Durability::Stored))
    };
    until(&*shared.clock, deadline, late, work).await
}

/// Makes everything within the scope *journaled*: waits until the last record is durable, and
/// stores changes that the log does not have. Returns `None` if everything must be stored.
async fn flush_log(shared: &Arc<Shared>, request: &FlushRequest) -> Result<Option<FlushReply>> {
    let Some(log) = &shared.journal.log else { return Ok(None) };
    if log.events.condition.state() != JournalState::Ok {
        return Ok(None);
    }
    let position = log.last_position();
    match request.scope.namespace() {
        Some(namespace) if !is_all_logged(shared, log, namespace) => return Ok(None),
        Some(_) => (),
        None => {
            // A namespace that this cache has not claimed has not been changed by it.
            for namespace in shared.store.epochs.known() {
                if !is_all_logged(shared, log, &namespace) {
                    let mut of_it = request.clone();
                    (of_it.scope, of_it.durability) = (Scope::Namespace(namespace), Durability::Stored);
                    Box::pin(flush(Arc::clone(shared), of_it)).await?;
                }
            }
        }
    }
    if position != Position(0) && !log_waits::durable(shared, position, None).await? {
        return Ok(None);
    }
    shared.objects.losses.check(&request.scope)?;
    Ok(Some(FlushReply::new(Durability::Journaled)))
}

/// Asks the store to make its data within the scope durable.
async fn flush_below(shared: &Shared, request: &FlushRequest) -> Result<()> {
    let mut below = request.clone();
    below.durability = Durability::Stored;
    let log = shared.journal.log.as_ref();
    let forwarded = log.map_or_else(Vec::new, |log| log.names.forwarded_within(&request.scope));
    let taken = shared.journal.forwarded.taken();
    shared.store.below.flush(below).await?;
    forwarded.iter().for_each(|(namespace, taken)| namespace.forwarded.note_stored(*taken));
    if request.scope == Scope::All {
        shared.journal.forwarded.note_stored(taken);
    }
    Ok(())
}

/// Returns whether the log has every change of a namespace that the store may not have stored. The
/// log does not count where another writer has taken over: a restart would not replay it.
fn is_all_logged(shared: &Shared, log: &ChangeLog, namespace: &Namespace) -> bool {
    !matches!(shared.store.epochs.get(namespace), Some(Own::Deposed(_)))
        && log.names.is_journaled(namespace)
        && shared.control.namespaces.write_mode(namespace) == WriteMode::Back
        && log.names.get(namespace).is_some_and(|known| !known.forwarded.is_any())
}

/// Marks stored changes in the log, if that is possible at once: then a restart has nothing to
/// replay.
fn mark_stored(shared: &Shared, log: &ChangeLog, scope: &Scope, up_to: Position) {
    if shared.objects.losses.is_any() {
        return;
    }
    // Without room, or if the journal has failed, the stored changes are replayed again.
    let _ = match scope {
        Scope::Object(object) => match log.names.get(&object.namespace).filter(|it| it.has_unmarked()) {
            Some(namespace) => log.mark_object(&namespace, object, up_to),
            None => return,
        },
        scope => log.mark_scope(scope, up_to),
    };
}

/// Waits until all changes within `scope` are stored, or recorded as lost.
pub(crate) async fn store_scope(
    shared: &Arc<Shared>,
    scope: &Scope,
    ticket: &Arc<FlushTicket>,
) -> Result<()> {
    if let Scope::Object(id) = scope {
        if let Some(in_use) = shared.find(shared.hash(id), id) {
            let handle = Handle::of(shared, in_use);
            expedite(&handle, ticket, 0).await?;
        }
    } else {
        for node in shared.objects.dirty_queue.nodes() {
            let Some(handle) = Handle::of_node(shared, node) else { continue };
            if scope.namespace().is_some_and(|namespace| *namespace != handle.id().namespace) {
                continue;
            }
            if let Scope::Domain(_, domain) = scope {
                let domain = *domain;
                let is_of_it = handle.enter(move |object, _| object.pending.domain == Some(domain));
                if !is_of_it.await {
                    continue;
                }
            }
            expedite(&handle, ticket, 0).await?;
        }
    }
    match Stored(Arc::clone(ticket)).await {
        Err(Error::WritesLost(_)) => Ok(()),
        result => result,
    }
}

/// Takes over a scope: changes acknowledged under older epochs are stored first.
pub(crate) async fn claim(shared: Arc<Shared>, request: ClaimRequest) -> Result<ClaimReply> {
    let deadline = request.call.deadline;
    let work = async {
        let ticket = Arc::new(FlushTicket::default());
        log_waits::scope_recovered(&shared, &request.scope).await?;
        store_scope(&shared, &request.scope, &ticket).await?;
        // From here on no older change is accepted; changes that arrived during the flush are also
        // stored. Where another claim has raised the epoch, its own flush may not be done yet.
        let claims = &shared.store.claims;
        let before = claims.raise(&request.scope, request.epoch)?;
        // A change that is being made may have been admitted before. For a single object, the flush
        // waits for it.
        if !matches!(request.scope, Scope::Object(_)) {
            let number = |of: &Namespace| shared.control.namespaces.known(of).unwrap_or(OTHERS);
            end_sections(&shared, request.scope.namespace().map(number)).await;
        }
        store_scope(&shared, &request.scope, &Arc::new(FlushTicket::default())).await?;
        let claimed = shared.store.below.claim(request.clone()).await;
        match &claimed {
            // Another claim of this epoch may have lowered it in the meantime.
            Ok(_) => claims.note(&request.scope, request.epoch),
            // The store is asked, because an earlier claim may have raised this epoch in the cache, and been
            // granted or not, and because a claim may run out of space once its epoch is in force.
            Err(Error::Invalid(_) | Error::OutOfSpace(_) | Error::Unsupported(_)) => {
                let in_force = ask_epoch(&shared.store, request.scope.clone()).await.unwrap_or(before);
                claims.lower(&request.scope, request.epoch, in_force);
            }
            // The epoch stays. It is in force, or this claim or another one of it may still be granted:
            // then the store would refuse what the cache had acknowledged to older writers.
            Err(_) => {}
        }
        claimed
    };
    let late = || Error::OutcomeUnknown("the deadline passed while the claim was made".into());
    until(&*shared.clock, deadline, late, work).await
}

/// Drops the clean copies within the scope, below and in the cache.
pub(crate) async fn invalidate(shared: Arc<Shared>, request: InvalidateRequest) -> Result<InvalidateReply> {
    let deadline = request.call.deadline;
    let losses = shared.objects.losses.count();
    let work = async {
        // A layer below drops its copies first: a read in between would bring them back. If it fails,
        // the copies here are dropped all the same.
        let below = shared.store.below.invalidate(request.clone()).await;
        let dropped = drop_clean(&shared, &request.scope).await?;
        let reply = below?;
        // The caller may accept the losses that occurred before its request. An event from below
        // accepts none, because no caller learns of a loss by it.
        if request.accepts_losses {
            shared.objects.losses.repair_first(&request.scope, losses);
        }
        Ok(InvalidateReply::new(reply.dropped_bytes + dropped))
    };
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};

    use blocker::clock::Sleep;
    use blocker::executor::block_on;
    use blocker::{
        Blocker, BlockerExt, Clock, Epoch, Memory, ObjectId, ReadRequest, Reply, SystemClock, Timestamp,
        WriteRequest, WriterId,
    };

    use super::*;
    use crate::object::ObjectCache;
    use crate::object::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};

    /// A clock that calls a function when it is asked for the time next.
    #[derive(Default)]
    struct AskedClock(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Clock for AskedClock {
        fn now(&self) -> Timestamp {
            let asked = self.0.lock().unwrap().take();
            asked.into_iter().for_each(|asked| asked());
            SystemClock.now()
        }
        fn sleep_until(&self, at: Timestamp) -> Sleep {
            SystemClock.sleep_until(at)
        }
    }

    /// A layer that calls a function before it drops its copies.
    #[derive(Default)]
    struct Layer(Memory, Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Blocker for Layer {
        blocker::delegate!(|this| this.0, except invalidate);

        fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
            let before = self.1.lock().unwrap().take();
            before.into_iter().for_each(|before| before());
            self.0.invalidate(request)
        }
    }

    /// The layer has an old copy until then, which another client reads meanwhile. The background of
    /// the cache, which would drop that again, does not run.
    #[test]
    fn no_copy_that_was_read_below_during_an_invalidation_is_left_after_it() {
        let (layer, id) = (Arc::new(Layer::default()), "n/o".parse::<ObjectId>().unwrap());
        let write = |layer: &Layer, id: &ObjectId, byte: u8| {
            block_on(layer.0.write(WriteRequest::new(id.clone(), 0, vec![byte; 4096]))).unwrap();
        };
        let read = |cache: &ObjectCache, id: &ObjectId| {
            block_on(cache.read(ReadRequest::new(id.clone(), 0, 4096))).unwrap().data.to_vec()
        };
        write(&layer, &id, 1);
        let config = ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            dirty_bytes_max: MEMORY_BYTES_MIN / 2,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let (cache, _background) =
            ObjectCache::new(Arc::clone(&layer) as _, config, Arc::new(SystemClock)).unwrap();
        let (own, below, object) = (cache.clone(), Arc::clone(&layer), id.clone());
        *layer.1.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(read(&own, &object), [1; 4096]);
            write(&below, &object, 2);
        }));
        block_on(cache.invalidate(InvalidateRequest::new(Scope::Object(id.clone())))).unwrap();
        assert_eq!(read(&cache, &id), [2; 4096]);
    }

    /// The change takes the time after it has been admitted, and before it is in the dirty queue.
    #[test]
    fn a_claim_stores_a_change_that_was_admitted_just_before_it() {
        let (store, clock) = (Arc::new(Memory::default()), Arc::new(AskedClock::default()));
        let id: ObjectId = "n/o".parse().unwrap();
        block_on(store.write(WriteRequest::new(id.clone(), 0, vec![1; 4096]))).unwrap();
        let config = ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            dirty_bytes_max: MEMORY_BYTES_MIN / 2,
            write: WriteMode::Back,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let (cache, mut background) =
            ObjectCache::new(Arc::clone(&store) as _, config, Arc::clone(&clock) as _).unwrap();
        block_on(cache.read(ReadRequest::new(id.clone(), 0, 4096))).unwrap();
        block_on(cache.info(InfoRequest::new(id.clone()))).unwrap();
        let ((entered, inside), (release, wait)) = (channel(), channel::<()>());
        *clock.0.lock().unwrap() = Some(Box::new(move || {
            entered.send(()).unwrap();
            wait.recv().unwrap();
        }));
        let (writer, write) = (cache.clone(), WriteRequest::new(id.clone(), 0, vec![2; 4096]));
        let writing = std::thread::spawn(move || block_on(writer.write(write)));
        inside.recv().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let scope = Scope::Namespace(id.namespace.clone());
        let mut claim = Box::pin(cache.claim(ClaimRequest::new(scope, Epoch(7), WriterId(1))).into_future());
        assert!(claim.as_mut().poll(&mut cx).is_pending(), "the change is not made yet");
        release.send(()).unwrap();
        writing.join().unwrap().unwrap();
        assert!(claim.as_mut().poll(&mut cx).is_pending(), "the change is not stored yet");
        assert!(Pin::new(&mut background).poll(&mut cx).is_pending());
        assert!(matches!(claim.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
        let stored = block_on(store.read(ReadRequest::new(id, 0, 4096))).unwrap();
        assert_eq!(stored.data.to_vec(), [2; 4096]);
    }
}
