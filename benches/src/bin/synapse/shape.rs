//! The parameters of a measurement, the same for every service: operation, size, parallelism, and
//! working set.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::raw;

/// Reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Operation {
    /// The payload is received.
    Read,
    /// The payload is sent.
    Write,
}

/// The compared services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// A small header and the payload over blocking sockets, with one thread on each side. Hardly
    /// any protocol can do less.
    Raw,
    /// As `Raw`, but one side processes a batch while the other processes the next one.
    RawBatched,
    /// synapse, with payloads that have no checksum.
    Synapse,
    /// synapse, with payload checksums.
    SynapseCrc,
    /// The same operations as unary calls, with tonic.
    Grpc,
}

impl Kind {
    /// Returns the services with which this program was built.
    pub(crate) fn built() -> Vec<Self> {
        let mut kinds = vec![Self::Raw, Self::RawBatched, Self::Synapse, Self::SynapseCrc];
        if cfg!(feature = "grpc") {
            kinds.push(Self::Grpc);
        }
        kinds
    }
}

impl Kind {
    /// Returns how many bytes a raw service receives or sends in one call.
    pub(crate) fn raw_batch_bytes(self) -> Option<usize> {
        match self {
            Self::Raw => Some(raw::WHOLE_BYTES),
            Self::RawBatched => Some(raw::BATCH_BYTES),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Raw => "raw TCP",
            Self::RawBatched => "raw, batched",
            Self::Synapse => "synapse",
            Self::SynapseCrc => "synapse+crc",
            Self::Grpc => "tonic/gRPC",
        })
    }
}

/// A closed loop of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The operation.
    pub(crate) operation: Operation,
    /// Payload of each request.
    pub(crate) bytes: usize,
    /// The number of requests in flight at any time.
    pub(crate) depth: usize,
    /// The duration of counting.
    pub(crate) duration: Duration,
    /// The size of the working set in bytes, in whole slots of `bytes`.
    pub(crate) working_set_bytes: usize,
}

impl Shape {
    /// Returns the number of slots in the working set.
    pub(crate) fn slots(&self) -> usize {
        (self.working_set_bytes / self.bytes).max(1)
    }

    /// Returns the slot of the request with this number. Every slot has its turn, neighbouring
    /// requests use distant slots, and every service has the same order.
    pub(crate) fn slot(&self, number: u64) -> usize {
        // An odd step visits every slot, because the number of slots is a power of two.
        let slots = self.slots().next_power_of_two() as u64;
        let slot = number.wrapping_mul(0x9e37_79b1) % slots;
        (slot as usize).min(self.slots() - 1)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = if self.operation == Operation::Read { "read" } else { "write" };
        let size = if self.bytes < 1 << 20 {
            format!("{} KiB", self.bytes >> 10)
        } else {
            format!("{} MiB", self.bytes >> 20)
        };
        out.pad(&format!("{size} {operation} × {}", self.depth))
    }
}
