//! A block device that several hosts share, or a file on one host: the registry's table and the
//! blocks of the election, on a medium that offers only reads and writes of blocks.
//!
//! ```text
//! block of 4 KiB   0: header   1..=N: agreement on the table   N+1..=2N: election   then 2 slots for each node
//! ```
//!
//! A node is one process, with a number below N that no other process uses. Only the first 512
//! bytes of a block of the agreement or the election are used, so that it is written whole or not at all
//! on every disk.
//!
//! A change of the table is the [agreement](crate::agreement) of one epoch: version V of the table is
//! what epoch V decides. A node writes its proposal to one of its slots (V modulo 2), enters the
//! epoch with its own number as the value, and at the end notes in its block which node's slot has
//! version V. Only then is the change acknowledged. A reader takes the highest version that any node
//! has noted. Each proposal also lists for every node the last version that was the node's own
//! proposal; so a node whose version others have decided finds out what they have decided.
//!
//! | module | content |
//! |---|---|
//! | `device` | the open file: aligned blocks, without the page cache; header, records, slots |
//! | `cell` | the table's cell |

mod cell;
mod device;

pub(crate) use cell::DiskCell;
pub(crate) use device::Disk;
pub use device::NODES_MAX;
