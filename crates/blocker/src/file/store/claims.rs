//! Fencing epochs, and letting go of what others have changed.

use std::sync::atomic::Ordering;

use super::{Store, ambiguous};
use crate::error::Result;
use crate::event::Event;
use crate::file::records::encode_claims;
use crate::name::Namespace;
use crate::order::Epoch;
use crate::request::{ClaimRequest, InvalidateRequest, Scope};
use crate::response::{ClaimReply, InvalidateReply};

impl Store {
    pub(in crate::file) fn claim(&self, request: &ClaimRequest) -> Result<ClaimReply> {
        self.check_open()?;
        let mut claims = self.claims.write();
        let mut raised = claims.clone();
        if raised.raise(&request.scope, request.epoch, request.writer)? {
            let stored = self.replace_small("claims", encode_claims(&raised));
            // Perhaps it is in place: from here on it binds, whatever the disk says.
            *claims = raised;
            drop(claims);
            stored.map_err(|error| ambiguous(&error))?;
            self.events.publish(&Event::Fenced(request.scope.clone(), request.epoch));
        }
        Ok(ClaimReply::new(request.epoch))
    }

    pub(in crate::file) fn invalidate(&self, request: &InvalidateRequest) -> Result<InvalidateReply> {
        self.check_open()?;
        for shard in &self.shards {
            let lost =
                shard.read().values().filter(|o| o.lost.load(Ordering::Acquire)).cloned().collect::<Vec<_>>();
            for object in lost.iter().filter(|object| request.scope.covers(&object.id, None)) {
                object.lost.store(false, Ordering::Release);
            }
        }
        self.events.publish(&Event::Changed(request.scope.clone()));
        Ok(InvalidateReply::new(0))
    }

    pub(in crate::file) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        let whole = Scope::Namespace(namespace.clone());
        let claims = self.claims.read();
        let of_it = |(scope, epoch, _)| (scope == whole || scope == Scope::All).then_some(epoch);
        claims.iter().filter_map(of_it).max().unwrap_or_default()
    }
}
