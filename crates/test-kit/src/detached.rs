//! A layer whose calls outlive their replies, like those of a store behind a library or a network:
//! dropping a reply does not cancel the call, and concurrent calls are performed in any order.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use blocker::*;

use crate::rng::Rng;
use crate::sim::Spawner;

/// The layer, see the module.
pub struct DetachedStore {
    inner: Arc<dyn Blocker>,
    spawner: Spawner,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    /// The number of calls per 1 000 that are answered immediately if the store below does so.
    ready_permille: u64,
    begun: u64,
    in_flight: BTreeSet<u64>,
    is_traced: bool,
    capabilities: Option<fn(&mut Capabilities)>,
}

struct Slot<T> {
    answer: Option<Result<T>>,
    waker: Option<Waker>,
}

impl DetachedStore {
    /// Creates a layer over `inner`. `seed` determines which calls are answered immediately:
    /// `ready_permille` of 1 000.
    pub fn new(inner: Arc<dyn Blocker>, spawner: Spawner, seed: u64, ready_permille: u64) -> Self {
        let state = State {
            rng: Rng::new(seed ^ 0xde7a),
            ready_permille,
            begun: 0,
            in_flight: BTreeSet::new(),
            is_traced: false,
            capabilities: None,
        };
        Self { inner, spawner, state: Arc::new(Mutex::new(state)) }
    }

    /// Reports fewer capabilities than the store has.
    pub fn limit(&self, change: fn(&mut Capabilities)) {
        self.state.lock().unwrap().capabilities = Some(change);
    }

    /// Prints every call and its answer from now on.
    pub fn trace(&self) {
        self.state.lock().unwrap().is_traced = true;
    }

    /// Returns the number of calls made.
    pub fn calls(&self) -> u64 {
        self.state.lock().unwrap().begun
    }

    /// Returns whether an earlier call than the one with this number is still in progress.
    pub fn has_older_than(&self, number: u64) -> bool {
        self.state.lock().unwrap().in_flight.first().is_some_and(|first| *first < number)
    }

    fn detach<T: Send + Unpin + 'static>(
        &self,
        what: impl FnOnce() -> String,
        act: impl FnOnce(&dyn Blocker) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (number, at_once) = {
            let mut state = self.state.lock().unwrap();
            state.begun += 1;
            if state.is_traced {
                println!("    below {}: {}", state.begun, what());
            }
            let (number, chance) = (state.begun, state.ready_permille);
            (number, state.rng.permille(chance))
        };
        let reply = if at_once {
            match act(&*self.inner) {
                Reply::Ready(answer) => return Reply::Ready(answer),
                pending => Ok(pending),
            }
        } else {
            Err(act)
        };
        self.state.lock().unwrap().in_flight.insert(number);
        let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
        let (own, inner, state) = (Arc::clone(&slot), Arc::clone(&self.inner), Arc::clone(&self.state));
        self.spawner.spawn(async move {
            let answer = match reply {
                Ok(pending) => pending.await,
                Err(act) => act(&*inner).await,
            };
            {
                let mut state = state.lock().unwrap();
                state.in_flight.remove(&number);
                if state.is_traced {
                    let result = answer.as_ref().err().map_or("done".to_owned(), ToString::to_string);
                    println!("    below {number}: {result}");
                }
            }
            let waker = {
                let mut slot = own.lock().unwrap();
                slot.answer = Some(answer);
                slot.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        });
        Reply::pending(poll_fn(move |cx| {
            let mut slot = slot.lock().unwrap();
            match slot.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

macro_rules! detached {
    ($($name:ident($request:ty) -> $reply:ty;)*) => {
        impl Blocker for DetachedStore {
            fn capabilities(&self) -> Capabilities {
                let mut capabilities = self.inner.capabilities();
                if let Some(change) = self.state.lock().unwrap().capabilities {
                    change(&mut capabilities);
                }
                capabilities
            }
            $(fn $name(&self, request: $request) -> Reply<$reply> {
                let is_traced = self.state.lock().unwrap().is_traced;
                let text = is_traced.then(|| format!("{} {request:?}", stringify!($name)));
                self.detach(move || text.unwrap_or_default(), move |inner| inner.$name(request))
            })*
            fn subscribe(&self) -> Subscription {
                self.inner.subscribe()
            }
        }
    };
}

detached! {
    read(ReadRequest) -> ReadReply;
    change(ChangeRequest) -> ChangeReply;
    info(InfoRequest) -> Info;
    list(ListRequest) -> ListReply;
    flush(FlushRequest) -> FlushReply;
    claim(ClaimRequest) -> ClaimReply;
    invalidate(InvalidateRequest) -> InvalidateReply;
}
