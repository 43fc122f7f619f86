//! Volumes: disks of any size, cut into objects over one [`Blocker`](blocker::Blocker).
//!
//! A volume is thin: what was never written takes no space. A snapshot or a clone moves no data, whatever the
//! size. A write in steady state is one write of one object: the map of which object lies where is in memory,
//! and changes of it are stored by the flush that comes after them. [`Volumes`] makes, lists and opens; a
//! [`Volume`] is an open one. No runtime is needed: futures are the standard library's. Only [`exports`], the volumes as
//! exports of an NBD server, run on tokio.
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
//! What is stored, and in which order, is in `docs/volume-format.md`.
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
