//! The server and the way to it: the HTTP client, requests with their time limits and repetition, how many of
//! them are under way, and what a refusal means. Nothing here knows what an object of the contract is.

pub(crate) mod client;
pub(crate) mod credentials;
pub(crate) mod limits;
pub(crate) mod refusal;
pub(crate) mod requests;
