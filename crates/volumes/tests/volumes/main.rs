//! Volumes over every backend and stack, and as exports over NBD.

mod beside;
mod counting;
mod crash;
mod damaged;
mod deposed;
mod disk;
mod elsewhere;
mod exports;
mod exports_receive;
mod exports_trouble;
mod handover;
mod in_place;
mod late;
mod model;
mod operations;
mod overlays;
mod quota;
mod racing;
mod released;
mod removal;
mod settings;
mod stack;
mod streams;
mod trouble;

use volumes::Settings;

/// Returns settings for a volume with objects of `object_bytes`.
fn objects_of(object_bytes: u64) -> Settings {
    Settings { object_bytes: Some(object_bytes), ..Settings::default() }
}
