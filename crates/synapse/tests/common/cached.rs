//! Stores that promise less than they do: durability, or anything else.

use std::sync::Arc;

use blocker::{Blocker, Capabilities, ChangeReply, Durability, Reply, WriteFullRequest, WriteRequest};

use crate::support::world::forward::{forward, forward_one};

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
    forward!(0: capabilities read write_zeroes discard compare_and_write truncate delete copy);
    forward!(0: info list flush claim invalidate subscribe);

    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        cached(self.0.write(request))
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        cached(self.0.write_full(request))
    }
}

/// Says that it can do something else.
pub(crate) struct Promising {
    pub(crate) inner: Arc<dyn Blocker>,
    pub(crate) can: Capabilities,
}

impl Blocker for Promising {
    forward!(inner: read write write_zeroes discard compare_and_write write_full truncate delete copy);
    forward!(inner: info list flush claim invalidate subscribe);

    fn capabilities(&self) -> Capabilities {
        self.can
    }
}
