//! The tests of the codecs on arbitrary bytes, whole and in fragments.

mod arbitrary;
#[path = "checks/auth.rs"]
mod auth;
mod checks;
mod fragments;
mod gates;
mod recorded;
