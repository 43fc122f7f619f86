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
