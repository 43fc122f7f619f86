//! Events of other clients, through RADOS's watch and notify on one internal object of the store.
//!
//! The store sends each claim and each invalidation as one small message. It does not send changes,
//! because every write would then send a message. If the watch breaks, a thread of the store
//! establishes it again, and retries until it is there; subscribers learn that they may have missed
//! events when it has broken, and again when it is there. Messages arrive from the network, so they
//! may be invalid: an invalid message only counts as a *missed* event.
//!
//! The cluster keeps a watcher that it cannot reach for some time, and drops it then; a watcher that
//! was dropped learns it when it is back. So a message waits longer for its watchers: each of them
//! either receives the message or is dropped.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use blocker::event::{Event, EventHub};
use blocker::{Epoch, Error, Name, Namespace, ObjectId, OrderDomain, Result, Scope};
use parking_lot::Mutex;

use super::{IoCtx, describe};
use crate::format;

/// The time without a sign of life after which the cluster considers a watcher dead, in seconds.
const WATCH_TIMEOUT_S: u32 = 10;
/// The maximum time that a message waits for unresponsive watchers, in milliseconds: longer than
/// they live.
pub(crate) const NOTIFY_TIMEOUT_MS: u64 = 15_000;
/// The time between two attempts to establish the watch again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The current watch, if there is one.
#[derive(Default)]
pub(crate) struct Watch {
    /// Locked while a watch is begun or ended, which takes as long as the cluster is away.
    registered: Mutex<Option<Registered>>,
}

struct Registered {
    ioctx: Arc<IoCtx>,
    cookie: u64,
    /// The argument of the callbacks. The registration owns it, and frees it when no further
    /// callback can run.
    listener: *mut Listener,
}

// SAFETY: the pointer is only turned back into its box, by the owner that takes the registration.
unsafe impl Send for Registered {}

struct Listener {
    /// The function that is called when the watch has failed.
    on_broken: Box<dyn Fn() + Send + Sync>,
    events: Arc<EventHub>,
    ioctx: Arc<IoCtx>,
    name: CString,
    /// The sender ID of this store's own messages.
    own: u64,
}

impl Watch {
    /// Watches the object `name`, and publishes the events that arrive there to `events`, except
    /// events sent by `own`. Ends an earlier watch. `on_broken` is called when the watch has
    /// failed, and must not end the watch itself. Blocks.
    pub(crate) fn begin(
        &self,
        ioctx: &Arc<IoCtx>,
        name: CString,
        events: &Arc<EventHub>,
        own: u64,
        on_broken: impl Fn() + Send + Sync + 'static,
    ) -> Result<()> {
        let mut registered = self.registered.lock();
        registered.take().into_iter().for_each(Registered::end);
        let ioctx = Arc::clone(ioctx);
        let listener = Box::into_raw(Box::new(Listener {
            on_broken: Box::new(on_broken),
            events: Arc::clone(events),
            ioctx: Arc::clone(&ioctx),
            name: name.clone(),
            own,
        }));
        let mut cookie = 0;
        // SAFETY: the listener lives until `Registered::end` has made sure that no callback comes any
        // more.
        let watched = unsafe {
            (ioctx.api().watch3)(
                ioctx.raw(),
                name.as_ptr(),
                &mut cookie,
                notified,
                watch_failed,
                WATCH_TIMEOUT_S,
                listener.cast::<c_void>(),
            )
        };
        if watched < 0 {
            // SAFETY: there is no watch, so nothing else refers to it.
            drop(unsafe { Box::from_raw(listener) });
            return Err(Error::Retryable(
                format!("cannot watch for events of other clients: {}", describe(watched)).into(),
            ));
        }
        *registered = Some(Registered { ioctx, cookie, listener });
        Ok(())
    }

    /// Ends the watch. Blocks until the last callback has returned, so a callback must not call this.
    pub(crate) fn end(&self) {
        self.registered.lock().take().into_iter().for_each(Registered::end);
    }
}

impl Registered {
    /// Ends the watch. Blocks until the last callback has returned.
    fn end(self) {
        let Self { ioctx, cookie, listener } = self;
        // SAFETY: the watch was begun with this cookie and is ended once. The flush waits for
        // running callbacks, so that the listener can be freed afterwards.
        unsafe {
            (ioctx.api().unwatch2)(ioctx.raw(), cookie);
            (ioctx.api().watch_flush)(ioctx.cluster.raw());
            drop(Box::from_raw(listener));
        }
    }
}

/// Establishes the watch again each time that it is `lost`, by `begin`, which is called until it
/// succeeds, with a pause after each failure. Returns when the senders of `lost` are gone, or
/// `begin` returns `None`.
pub(crate) fn keep(lost: &Receiver<()>, pause: Duration, mut begin: impl FnMut() -> Option<Result<()>>) {
    while lost.recv().is_ok() {
        loop {
            match begin() {
                None => return,
                Some(Ok(())) => break,
                Some(Err(_)) => {}
            }
            if lost.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }
}

/// The callback for a message, which librados calls.
unsafe extern "C" fn notified(
    arg: *mut c_void,
    notify_id: u64,
    cookie: u64,
    _notifier: u64,
    data: *mut c_void,
    len: usize,
) {
    // SAFETY: `begin` gave the listener, which lives until no callback can come.
    let listener = unsafe { &*arg.cast_const().cast::<Listener>() };
    let message = if data.is_null() {
        &[][..]
    } else {
        // SAFETY: librados gives this number of bytes for the time of the call.
        unsafe { std::slice::from_raw_parts(data.cast_const().cast::<u8>(), len) }
    };
    match decode(message) {
        Some((own, _)) if own == listener.own => {}
        Some((_, event)) => listener.events.publish(&event),
        None => listener.events.publish(&Event::Missed),
    }
    // SAFETY: the handle is live, the name ends in NUL, and the answer is empty.
    unsafe {
        (listener.ioctx.api().notify_ack)(
            listener.ioctx.raw(),
            listener.name.as_ptr(),
            notify_id,
            cookie,
            std::ptr::null(),
            0 as c_int,
        );
    }
}

/// The callback for a failed watch, which librados calls.
unsafe extern "C" fn watch_failed(arg: *mut c_void, _cookie: u64, _error: c_int) {
    // SAFETY: as in `notified`.
    let listener = unsafe { &*arg.cast_const().cast::<Listener>() };
    listener.events.publish(&Event::Missed);
    (listener.on_broken)();
}

// ---- messages: version u8 │ sender u64 │ kind u8 │ epoch u64 │ scope u8 │ domain u64 │ namespace │ name,
// ---- the last two each preceded by their length as a u8

const MESSAGE_VERSION: u8 = 1;
const CHANGED: u8 = 1;
const FENCED: u8 = 2;

/// Encodes an event of the sender `own`; `None` for events that are not sent.
pub(crate) fn encode(event: &Event, own: u64) -> Option<Vec<u8>> {
    let (kind, scope, epoch) = match event {
        Event::Changed(scope) => (CHANGED, scope, 0),
        Event::Fenced(scope, epoch) => (FENCED, scope, epoch.0),
        _ => return None,
    };
    let (tag, domain, namespace, name) = match scope {
        Scope::All => (0, 0, &[][..], &[][..]),
        Scope::Namespace(namespace) => (1, 0, namespace.as_bytes(), &[][..]),
        Scope::Domain(namespace, domain) => (2, domain.0, namespace.as_bytes(), &[][..]),
        Scope::Object(object) => (3, 0, object.namespace.as_bytes(), object.name.as_bytes()),
        _ => return None,
    };
    let mut message = vec![MESSAGE_VERSION];
    message.extend(own.to_be_bytes());
    message.push(kind);
    message.extend(epoch.to_be_bytes());
    message.push(tag);
    message.extend(domain.to_be_bytes());
    for text in [namespace, name] {
        // A name has at most 255 bytes.
        message.push(text.len() as u8);
        message.extend(text);
    }
    Some(message)
}

fn decode(message: &[u8]) -> Option<(u64, Event)> {
    let mut rest = message;
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(taken)
    };
    if take(1)? != [MESSAGE_VERSION] {
        return None;
    }
    let own = format::u64_of(take(8)?)?;
    let kind = take(1)?[0];
    let epoch = Epoch(format::u64_of(take(8)?)?);
    let tag = take(1)?[0];
    let domain = OrderDomain(format::u64_of(take(8)?)?);
    let len = usize::from(take(1)?[0]);
    let namespace = Namespace::copy_from(take(len)?);
    let len = usize::from(take(1)?[0]);
    let name = Name::copy_from(take(len)?);
    let scope = match tag {
        0 => Scope::All,
        1 => Scope::Namespace(namespace.ok()?),
        2 => Scope::Domain(namespace.ok()?, domain),
        3 => Scope::Object(ObjectId::new(namespace.ok()?, name.ok()?)),
        _ => return None,
    };
    match kind {
        CHANGED => Some((own, Event::Changed(scope))),
        FENCED => Some((own, Event::Fenced(scope, epoch))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_lost_watch_is_begun_until_it_is_there_as_often_as_it_is_lost() {
        let (lose, lost) = sync_channel(1);
        lose.send(()).unwrap();
        let (mut lose, mut attempts) = (Some(lose), 0);
        keep(&lost, Duration::ZERO, || {
            attempts += 1;
            match attempts {
                1 | 2 => return Some(Err(Error::Retryable("the cluster is away".into()))),
                // It is lost again at once.
                3 => lose.iter().for_each(|lose| lose.send(()).unwrap()),
                _ => lose = None,
            }
            Some(Ok(()))
        });
        assert_eq!(attempts, 4);
    }

    #[test]
    fn an_event_is_decoded_as_it_was_sent_and_nothing_else_is_an_event() {
        let namespace = Namespace::new("vm").unwrap();
        let object = ObjectId::new(namespace.clone(), Name::new(vec![0; 255]).unwrap());
        let scopes = [
            Scope::All,
            Scope::Namespace(namespace.clone()),
            Scope::Domain(namespace, OrderDomain(7)),
            Scope::Object(object),
        ];
        for scope in scopes {
            for event in [Event::Changed(scope.clone()), Event::Fenced(scope.clone(), Epoch(9))] {
                let message = encode(&event, 5).unwrap();
                assert_eq!(decode(&message), Some((5, event)));
                for len in 0..message.len() {
                    assert_eq!(decode(&message[..len]), None, "cut off after {len} bytes");
                }
            }
        }
        assert_eq!(encode(&Event::Full, 1), None);
    }
}
