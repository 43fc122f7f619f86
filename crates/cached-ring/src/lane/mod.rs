//! The two ends of a lane: a connection on which one worker of the entry passes requests to one
//! owner. Both are machines over bytes; the caller has the socket. Both ends keep the order
//! and the limits of requests and replies; the caller executes the requests. The entry's end has two
//! files: `outbound` for requests on their way to the owner, `outcome` for what becomes of them.

mod inbound;
mod outbound;
mod outcome;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

pub use inbound::{Asked, Inbound};
pub use outbound::{Outbound, RequestId, Waiter};
pub use outcome::{Answer, Executed, Failed};
