//! Tests of opening and closing the stores of a daemon's configuration.

mod receive;
mod shutdown;
