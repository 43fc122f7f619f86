//! Tests of TLS connections over a pair of sockets, and the client that they share with the fuzz
//! target.

#[cfg_attr(not(test), allow(dead_code, reason = "the tests use more of it than the fuzz target"))]
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target calls it"))]
pub(crate) mod harness;
