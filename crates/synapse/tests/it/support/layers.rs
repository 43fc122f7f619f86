//! Backends that promise less than they provide, in durability or capabilities.

use std::sync::Arc;

use blocker::{Blocker, Capabilities, ChangeReply, Durability, Reply, WriteFullRequest, WriteRequest};

/// Acknowledges writes as *cached*.
pub(crate) struct Caching(pub(crate) Arc<dyn Blocker>);

fn cached(reply: Reply<ChangeReply>) -> Reply<ChangeReply> {
    reply.then(|answer| {
        answer.map(|mut reply| {
            reply.durability = Durability::Cached;
            reply
        })
    })
}

impl Blocker for Caching {
    blocker::delegate!(|this| this.0, except write write_full);

    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        cached(self.0.write(request))
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        cached(self.0.write_full(request))
    }
}

/// Reports other capabilities.
pub(crate) struct Promising {
    pub(crate) inner: Arc<dyn Blocker>,
    pub(crate) can: Capabilities,
}

impl Blocker for Promising {
    blocker::delegate!(|this| this.inner, except capabilities);

    fn capabilities(&self) -> Capabilities {
        self.can
    }
}
