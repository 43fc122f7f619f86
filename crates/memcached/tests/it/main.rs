//! The tests of the memcached listener: a server in this process.

mod connection;
