//! The two ends of a lane: a connection on which one worker of the entry passes requests to one
//! owner. Both are machines over bytes; the caller has the socket. Both ends keep the order
//! and the limits of requests and replies; the caller executes the requests.

mod inbound;
mod outbound;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

pub use inbound::{Asked, Inbound};
pub use outbound::{Answer, Executed, Failed, Outbound, RequestId, Waiter};
