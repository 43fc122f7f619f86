//! Volumes over every backend and stack.

mod beside;
mod counting;
mod crash;
mod disk;
mod model;
mod operations;
mod stack;
mod streams;
mod trouble;
