//! Fencing epochs, and letting go of what others have changed.

use std::sync::atomic::Ordering;

use super::{Store, ambiguous};
use crate::admission::Claims;
use crate::error::Result;
use crate::event::Event;
use crate::file::records::encode_claims;
use crate::file::twice::CLAIMS;
use crate::name::Namespace;
use crate::order::Epoch;
use crate::request::{ClaimRequest, InvalidateRequest, Scope};
use crate::response::{ClaimReply, InvalidateReply};

/// The claims in force.
pub(super) struct ClaimsHeld {
    pub(super) claims: Claims,
    /// The last attempt to store them failed: they bind here, and perhaps not after a restart.
    pub(super) unstored: bool,
}

impl ClaimsHeld {
    pub(super) fn new(claims: Claims) -> Self {
        Self { claims, unstored: false }
    }
}

impl Store {
    pub(in crate::file) fn claim(&self, request: &ClaimRequest) -> Result<ClaimReply> {
        let mut held = self.claims.write();
        self.check_open()?;
        if request.epoch > Epoch(0) {
            self.check_changeable()?;
        }
        let mut raised = held.claims.clone();
        let is_news = raised.raise(&request.scope, request.epoch, request.writer)?;
        // A claim that is repeated because storing it failed is answered when it is stored, and not before.
        if is_news || (held.unstored && request.epoch > Epoch(0)) {
            // From here on it binds, even if the disk reports an error: it may be in place.
            held.claims = raised;
            held.unstored = true;
            let stored = self.replace_small(CLAIMS, &encode_claims(&held.claims));
            stored.map_err(|error| ambiguous(&error))?;
            held.unstored = false;
            drop(held);
            self.events.publish(&Event::Fenced(request.scope.clone(), request.epoch));
        }
        Ok(ClaimReply::new(request.epoch))
    }

    pub(in crate::file) fn invalidate(&self, request: &InvalidateRequest) -> Result<InvalidateReply> {
        self.check_changeable()?;
        let mut lost = Vec::new();
        for shard in &self.shards {
            let objects = shard.objects.read();
            let of_it = objects.values().filter(|object| request.scope.covers(&object.id, None));
            lost.extend(of_it.filter(|object| object.lost.load(Ordering::Acquire)).cloned());
        }
        for object in lost {
            let _held = self.claims.read();
            self.check_open()?;
            let mut state = self.loaded_mut(&object)?;
            if object.lost.load(Ordering::Acquire) {
                self.renew(&object, &mut state)?;
                self.mark_unsynced(&object);
            }
        }
        self.events.publish(&Event::Changed(request.scope.clone()));
        Ok(InvalidateReply::new(0))
    }

    pub(in crate::file) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        let whole = Scope::Namespace(namespace.clone());
        let held = self.claims.read();
        let of_it = |(scope, epoch, _)| (scope == whole || scope == Scope::All).then_some(epoch);
        held.claims.iter().filter_map(of_it).max().unwrap_or_default()
    }
}
