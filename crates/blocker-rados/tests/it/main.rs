//! The tests of the store on RADOS, before a one-node Ceph.

mod conformance;
mod faults;
mod fencing;
mod operators;
mod support;
