//! Claims by another writer.

use blocker::{ClaimRequest, Epoch, Scope, WriterId};

/// Returns a claim by another writer, who is a new one at each call.
pub fn claim(scope: Scope, epoch: Epoch) -> ClaimRequest {
    ClaimRequest::new(scope, epoch, WriterId(u128::from(epoch.0) << 64 | 77))
}

/// Returns a request for the epoch in force.
pub fn ask(scope: Scope) -> ClaimRequest {
    ClaimRequest::ask(scope)
}
