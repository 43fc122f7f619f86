//! Tests of the registry from outside: one contract for all bodies, and what only some bodies have.

mod bodies;
mod contract;
mod election;
mod etcd;
mod etcd_server;
