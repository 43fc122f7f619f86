//! Volumes over every backend and stack.

mod beside;
mod counting;
mod crash;
mod deposed;
mod disk;
mod handover;
mod model;
mod operations;
mod overlays;
mod racing;
mod stack;
mod streams;
mod trouble;
