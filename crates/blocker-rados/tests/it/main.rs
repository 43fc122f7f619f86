//! The tests of the store on RADOS, with a one-node Ceph.

mod conformance;
mod faults;
mod fencing;
mod operators;
mod support;
