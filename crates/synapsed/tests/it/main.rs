//! The tests of `synapsed` as a program.

mod daemon;
mod restart;
