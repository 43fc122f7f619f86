//! Volumes over every backend and stack.

mod beside;
mod counting;
mod crash;
mod damaged;
mod deposed;
mod disk;
mod elsewhere;
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
