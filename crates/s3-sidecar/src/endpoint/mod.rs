//! Requests to the endpoint, and the things that may delay them: a rate limit, a circuit breaker,
//! the response to another reader, a client's body. Knowledge about objects does not belong here.

pub(crate) mod asking;
pub(crate) mod lane;
pub(crate) mod upload;
pub(crate) mod upstream;
