//! Requests to the endpoint, and what they wait for: a rate, a breaker, another reader's answer, the body of a client. What is known of
//! objects does not belong here.

pub(crate) mod asking;
pub(crate) mod lane;
pub(crate) mod upload;
pub(crate) mod upstream;
