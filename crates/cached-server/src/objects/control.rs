//! What the object cache's thread is to do, and what has come of it. Any thread may ask for it.
//!
//! ```text
//!  Hold ──► Serve ◄──► Release ──► HandedOver
//!    └────────┴───────────┴──────► End
//! ```

use super::sockets::ObjectSockets;
use blocker::executor::block_on;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::watch;

/// What the thread is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Wait: another process may go on instead of this one.
    Hold,
    /// Serve, with a store that is opened for that if need be.
    Serve,
    /// Let the store go, once everything is stored, and wait.
    Release,
    /// End: another process has the store.
    HandedOver,
    /// Store everything, and end.
    End,
}

impl Wanted {
    /// Returns whether nothing else can be wanted any more.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Wanted::End | Wanted::HandedOver)
    }
}

/// What has come of [`Wanted::Release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Released {
    /// Nothing yet, or it was not asked for.
    NotYet,
    /// The store is closed.
    Done,
    /// The cache serves: why it cannot let the store go.
    Refused(String),
}

/// Asks the thread of an object cache. All clones ask the same.
#[derive(Debug, Clone)]
pub struct ObjectsControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wanted: watch::Sender<Wanted>,
    released: watch::Sender<Released>,
    sockets: ObjectSockets,
    /// Why another process cannot take over, if that is so.
    obstacle: Option<&'static str>,
}

impl ObjectsControl {
    pub(super) fn new(sockets: ObjectSockets, obstacle: Option<&'static str>) -> ObjectsControl {
        let (wanted, _) = watch::channel(Wanted::Hold);
        let (released, _) = watch::channel(Released::NotYet);
        ObjectsControl { shared: Arc::new(Shared { wanted, released, sockets, obstacle }) }
    }

    /// Returns why no other process can take the store over, if none can.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.shared.obstacle
    }

    /// Lets it serve, the first time or again. It opens the store for that if it has let it go.
    pub fn serve(&self) {
        self.want(Wanted::Serve);
    }

    /// Has it store everything and let the store go. Blocks until it has; what it serves waits meanwhile, and goes on
    /// when [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// Why it serves on instead, as a part of a line.
    pub(crate) fn release(&self) -> Result<(), String> {
        let Shared { wanted, released, .. } = &*self.shared;
        released.send_replace(Released::NotYet);
        self.want(Wanted::Release);
        let (mut wanted, mut released) = (wanted.subscribe(), released.subscribe());
        let result = block_on(async {
            tokio::select! {
                biased;
                result = released.wait_for(|released| *released != Released::NotYet) => {
                    result.map_or(Released::NotYet, |released| released.clone())
                }
                _ = wanted.wait_for(|wanted| *wanted != Wanted::Release) => Released::NotYet,
            }
        });
        match result {
            Released::Done => Ok(()),
            Released::Refused(why) => Err(why),
            Released::NotYet => Err("this process ends".into()),
        }
    }

    /// Ends it: another process has its store and its sockets.
    pub(crate) fn hand_over(&self) {
        self.shared.sockets.forget();
        self.want(Wanted::HandedOver);
    }

    /// Requests its end. It stores everything.
    pub(super) fn end(&self) {
        self.want(Wanted::End);
    }

    /// Returns copies of its sockets for another process, each with its configured address.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub(crate) fn sockets(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        self.shared.sockets.copies()
    }

    pub(super) fn listening(&self) -> &ObjectSockets {
        &self.shared.sockets
    }

    pub(super) fn wanted(&self) -> watch::Receiver<Wanted> {
        self.shared.wanted.subscribe()
    }

    /// Returns whether the store is another process's for the moment, or is being let go.
    pub(super) fn is_released(&self) -> bool {
        *self.shared.released.borrow() == Released::Done
    }

    pub(super) fn set_released(&self, released: Released) {
        self.shared.released.send_replace(released);
    }

    fn want(&self, next: Wanted) {
        self.shared.wanted.send_if_modified(|now| {
            // An end is final.
            let is_changed = !now.is_end() && *now != next;
            if is_changed {
                *now = next;
            }
            is_changed
        });
    }
}

/// Waits until something else is wanted than `now`; returns it.
pub(super) async fn other_than(now: Wanted, wanted: &mut watch::Receiver<Wanted>) -> Wanted {
    // Fails once there is no control, and so none that could ask for anything else.
    wanted.wait_for(|wanted| *wanted != now).await.map_or(Wanted::End, |wanted| *wanted)
}

/// Waits until the end is wanted.
pub(super) async fn ended(mut wanted: watch::Receiver<Wanted>) {
    // Fails once there is no control, as above.
    let _ = wanted.wait_for(|wanted| wanted.is_end()).await;
}
