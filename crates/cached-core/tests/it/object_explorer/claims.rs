//! Claims by another writer.

use blocker::{ClaimRequest, Epoch, Scope, WriterId};

/// A claim by another writer, which is a new one each time.
pub fn claim(scope: Scope, epoch: Epoch) -> ClaimRequest {
    ClaimRequest::new(scope, epoch, WriterId(u128::from(epoch.0) << 64 | 77))
}

/// A request for the epoch in force.
pub fn ask(scope: Scope) -> ClaimRequest {
    ClaimRequest::ask(scope)
}
