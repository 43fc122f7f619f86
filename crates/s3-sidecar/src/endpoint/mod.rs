//! Requests to the endpoint, and what may delay them: a rate, a circuit breaker, another reader's
//! answer, a client's body. Knowledge about objects does not belong here.

pub(crate) mod asking;
pub(crate) mod lane;
pub(crate) mod upload;
pub(crate) mod upstream;
