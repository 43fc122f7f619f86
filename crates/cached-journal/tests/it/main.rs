//! The tests of the journal on real disks.

mod kill9;
mod real_disk;
