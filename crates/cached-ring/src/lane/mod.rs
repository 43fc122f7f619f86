//! The two ends of a lane: a connection on which one worker of the entry passes requests to one
//! owner. Both are machines over bytes; the caller has the socket. Here belongs the order of
//! requests and replies and their limits, not the execution of requests.

mod inbound;
mod outbound;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

pub use inbound::{Asked, Inbound};
pub use outbound::{Answer, Executed, Failed, Outbound, RequestId, Waiter};
