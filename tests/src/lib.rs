//! The harness of the black-box tests: it starts a server as a program and talks to its sockets.
//!
//! Nothing here depends on how the server is built. The same tests run against any server that takes
//! memcached's flags, so they are first proved on memcached 1.6.45 itself:
//! `CACHED_TEST_SERVER=/path/to/memcached cargo test -p cached-tests`. Without the variable they build and
//! run this workspace's own `cached`.
//!
//! | module | content |
//! |---|---|
//! | [`program`] | which server binary is under test, and building it |
//! | [`server`] | one running server: start, readiness, memory, stop |
//! | [`conn`] | one client connection with deadlines and fragmented writes |
//! | [`bytes`] | writing bytes as text and back |
//! | [`frame`] | binary protocol frames |
//! | [`pattern`] | expected bytes with wildcards |
//! | [`script`], [`play`] | the wire script language and the runner of its cases |
//! | [`differences`] | the deliberate differences from memcached 1.6.45 |
//! | [`outside`] | programs and files from outside the repository; without them tests are skipped loudly |
//! | [`abuse`] | shared by the tests of abusive clients |
//! | [`generate`] | seeded random command sequences |
//! | [`configurations`] | the servers that the two checkers run against |
//! | [`checkers`] | the command line of the checkers |
//! | [`check`] | the value checker: self-describing values under every kind of load |
//! | [`lockstep`] | the same random commands to two servers |
//! | [`modules`] | the modules of a crate and the circles among them |
//! | [`mutations`] | small wrong changes to the product, each of which some test must notice |

pub mod abuse;
pub mod bytes;
pub mod check;
pub mod checkers;
pub mod configurations;
pub mod conn;
pub mod differences;
pub mod frame;
pub mod generate;
pub mod lockstep;
pub mod modules;
pub mod mutations;
pub mod outside;
pub mod pattern;
pub mod play;
pub mod program;
pub mod script;
pub mod server;
