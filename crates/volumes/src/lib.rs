//! Volumes: disks of any size, cut into objects over one [`Blocker`](blocker::Blocker).
//!
//! A volume is thin: unwritten ranges take no space. A snapshot or a clone moves no data, whatever
//! the size. In the steady state a write is one write of one object: the map from offsets to
//! objects is in memory, and the next flush stores its changes. [`Volumes`] creates, lists and
//! opens volumes; a [`Volume`] is an open one. No runtime is needed: futures are the standard
//! library's. Only [`exports`], which serves volumes over NBD, runs on tokio.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Durability, Memory, executor::block_on};
//! use volumes::{OpenOptions, Options, Settings, Volumes};
//!
//! let volumes = Volumes::new(Arc::new(Memory::default()), Options::new("volumes"))?;
//! block_on(async {
//!     volumes.create("disk", 1 << 40, Settings::default()).await?;
//!     let disk = volumes.open("disk", OpenOptions::default()).await?;
//!     disk.write(1 << 39, b"hello".into(), Durability::Cached).await?;
//!     disk.flush().await?;
//!     assert_eq!(disk.read(1 << 39, 7).await?.to_vec(), b"hello\0\0");
//!     disk.close().await
//! })?;
//! # Ok::<_, volumes::Error>(())
//! ```
//!
//! `docs/volume-format.md` describes the stored format and the order of its changes.
#![warn(missing_debug_implementations)]

mod catalog;
mod error;
pub mod exports;
mod format;
mod manage;
mod settings;
mod space;
mod volume;

pub use crate::catalog::is_shown;
pub use crate::error::{Error, Result};
pub use crate::manage::Volumes;
pub use crate::manage::check::{Problem, ProblemKind, Report};
pub use crate::manage::snapshot::Snapshot;
pub use crate::manage::stream::{Export, Import, StreamHeader};
pub use crate::settings::{
    Change, DamagedVolume, Extent, ExtentKind, Fencing, Listing, OpenOptions, Options, OriginInfo, Rates,
    Settings, SnapshotInfo, Usage, VolumeInfo,
};
pub use crate::volume::{Answer, Volume};
