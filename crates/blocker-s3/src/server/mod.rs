//! The server: the HTTP client, requests with their time limits and retries, limits on concurrent
//! requests, and the meaning of refusals. This module does not know the contract's objects.

pub(crate) mod client;
pub(crate) mod credentials;
pub(crate) mod limits;
pub(crate) mod refusal;
pub(crate) mod requests;
