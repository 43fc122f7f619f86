//! The harness of the black-box tests: it starts a server as a program and talks to its sockets.
//!
//! The harness does not depend on the server's implementation. The same tests run against any
//! server that accepts memcached's flags, so they are first validated on memcached 1.6.45 itself:
//! `CACHED_TEST_SERVER=/path/to/memcached cargo test -p cached-tests`. Without the variable they
//! build and run this workspace's own `cached`.
//!
//! | module | content |
//! |---|---|
//! | [`program`] | which server binary is under test, and building it |
//! | [`server`] | one running server: start, readiness, memory, stop |
//! | [`tls`] | certificates, and the client's side of TLS |
//! | [`password`] | servers that require passwords, and what a client sends first to them |
//! | [`udp`] | the client's side of UDP |
//! | [`ring`] | rings of nodes, and the map that says which node owns which slots |
//! | [`moves`] | rings whose slots move between running nodes, and clients that must not notice |
//! | [`conn`] | one client connection with deadlines and fragmented writes |
//! | [`bytes`] | writing bytes as text and back |
//! | [`frame`] | binary protocol frames |
//! | [`pattern`] | expected bytes with wildcards |
//! | [`script`], [`play`] | the wire script language and the runner of its cases |
//! | [`differences`] | the deliberate differences from memcached 1.6.45 |
//! | [`suite`] | memcached's own test suite, with the server under test in memcached's place |
//! | [`ceph`] | a one-node Ceph for tests |
//! | [`s3`] | `cached` before S3 endpoints that check signatures, and Ceph's s3-tests |
//! | [`kill9`] | kill -9 of the real process under load, and what must be there after it |
//! | [`warm`] | kill -9 of the real process with a memory file, and what each key may show after it |
//! | [`upgrade`] | new processes that take over from running ones under load |
//! | [`virtual_machine`] | a Debian guest under emulation that boots from a volume of `cached` |
//! | [`small_disk`] | a file system that a test fills |
//! | [`time_of_day`] | programs whose time of day a test sets |
//! | [`site`] | `cached` or `synapsed` with a journal over a file store |
//! | [`pair`] | two hosts that elect the one that serves |
//! | [`etcd`] | an etcd that a test kills and starts again |
//! | [`network`] | network namespaces between which a test drops packets, one direction at a time |
//! | [`relay`] | a TCP relay that a test cuts or delays |
//! | [`ending`] | flags that end threads, also where a test fails |
//! | [`object_client`] | clients of objects that wait for a slow server |
//! | [`http`] | a client of the admin listener |
//! | [`python`] | Python's packages for a test, in a virtual environment of their own |
//! | [`page`] | the shell examples of a page, and a shell that runs them |
//! | [`outside`] | programs and files from outside the repository, as all crates' tests use them |
//! | [`browser`] | a headless Chromium, for the console |
//! | [`abuse`] | shared by the tests of abusive clients |
//! | [`generate`] | seeded random command sequences |
//! | [`configurations`] | the servers that the two checkers run against |
//! | [`checkers`] | the command line of the checkers |
//! | [`check`] | the value checker: self-describing values under every kind of load |
//! | [`lockstep`] | the same random commands to two servers |
//! | [`modules`] | the modules of a crate and the circles among them |

pub mod abuse;
pub mod browser;
pub mod bytes;
pub mod ceph;
pub mod check;
pub mod checkers;
pub mod configurations;
pub mod conn;
pub mod daemon;
pub mod differences;
pub mod ending;
pub mod etcd;
pub mod frame;
pub mod generate;
pub mod http;
pub mod kill9;
pub mod lockstep;
pub mod modules;
pub mod moves;
pub mod nbd;
pub mod network;
pub mod object_client;
pub mod page;
pub mod pair;
pub mod password;
pub mod pattern;
pub mod play;
pub mod program;
pub mod python;
pub mod reference;
pub mod relay;
pub mod ring;
pub mod s3;
pub mod script;
pub mod server;
pub mod site;
pub mod small_disk;
pub mod suite;
pub mod time_of_day;
pub mod tls;
pub mod udp;
pub mod upgrade;
pub mod virtual_machine;
pub mod warm;

pub use test_kit::outside;
