//! What differs between versions of the contract.

use blocker::{ClaimRequest, Epoch, Scope};

/// A claim by another writer.
pub fn claim(scope: Scope, epoch: Epoch) -> ClaimRequest {
    ClaimRequest::new(scope, epoch)
}
