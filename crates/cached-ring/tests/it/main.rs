//! The tests of the ring's protocol with arbitrary bytes.

mod arbitrary;
mod checks;
