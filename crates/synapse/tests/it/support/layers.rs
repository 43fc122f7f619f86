//! Backends that promise less than they provide, in durability or capabilities.

use std::sync::Arc;

use blocker::{Blocker, Capabilities, Change, ChangeReply, ChangeRequest, Durability, Reply};

/// A layer that acknowledges writes as *cached*.
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
    blocker::delegate!(|this| this.0, except change);

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let is_write = matches!(request.change, Change::Write { .. } | Change::WriteFull { .. });
        let reply = self.0.change(request);
        if is_write { cached(reply) } else { reply }
    }
}

/// A layer that reports other capabilities.
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
