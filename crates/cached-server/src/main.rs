//! The `cached` server binary.
fn main() {}
