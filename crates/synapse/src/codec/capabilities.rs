//! A backend's capabilities as bytes, in the welcome and in the answer to an attach.

use blocker::{Capabilities, Survives};

use super::fields::{durability_bytes, durability_of};

/// The length of the first version of the capabilities: six `u64`, then bytes.
const CAPABILITY_BYTES_MIN: usize = 6 * 8 + 10;
/// The length as sent: with the most runs. Later versions may be longer.
const CAPABILITY_BYTES: usize = CAPABILITY_BYTES_MIN + 4;

pub(super) fn encode_capabilities(capabilities: &Capabilities) -> [u8; CAPABILITY_BYTES] {
    let mut bytes = [0; CAPABILITY_BYTES];
    let longs = [
        capabilities.object_bytes_max,
        capabilities.request_bytes_max,
        capabilities.compare_bytes_max,
        u64::from(capabilities.list_entries_max),
        capabilities.atomic_bytes,
        capabilities.crash_atomic_bytes,
    ];
    for (at, long) in bytes.chunks_exact_mut(8).zip(longs) {
        at.copy_from_slice(&long.to_le_bytes());
    }
    let (durability, replicas) = durability_bytes(capabilities.durability_max);
    let survives = match capabilities.survives {
        Survives::Nothing => 0,
        Survives::ProcessKill => 1,
        Survives::PowerLoss => 2,
    };
    let bools = [
        capabilities.write_full_atomic,
        capabilities.conditions,
        capabilities.fencing,
        capabilities.tombstones,
        capabilities.order_domains,
        capabilities.copy_native,
        capabilities.holes_native,
    ];
    for (at, is) in bytes[48..55].iter_mut().zip(bools) {
        *at = u8::from(is);
    }
    bytes[55..58].copy_from_slice(&[durability, replicas, survives]);
    bytes[CAPABILITY_BYTES_MIN..].copy_from_slice(&capabilities.runs_max.to_le_bytes());
    bytes
}

pub(super) fn decode_capabilities(bytes: &[u8]) -> Option<Capabilities> {
    let fixed = bytes.first_chunk::<CAPABILITY_BYTES_MIN>()?;
    let long = |index: usize| {
        let at = &fixed[index * 8..index * 8 + 8];
        at.try_into().map(u64::from_le_bytes).unwrap_or_default()
    };
    let is = |index: usize| fixed[48 + index] != 0;
    let mut capabilities = Capabilities::full(long(0));
    // The first servers of this version do not send it.
    let runs_max = bytes.get(CAPABILITY_BYTES_MIN..CAPABILITY_BYTES).and_then(|runs| runs.try_into().ok());
    capabilities.runs_max = runs_max.map_or(0, u32::from_le_bytes);
    capabilities.request_bytes_max = long(1);
    capabilities.compare_bytes_max = long(2);
    capabilities.list_entries_max = u32::try_from(long(3)).ok()?;
    capabilities.atomic_bytes = long(4);
    capabilities.crash_atomic_bytes = long(5);
    capabilities.write_full_atomic = is(0);
    capabilities.conditions = is(1);
    capabilities.fencing = is(2);
    capabilities.tombstones = is(3);
    capabilities.order_domains = is(4);
    capabilities.copy_native = is(5);
    capabilities.holes_native = is(6);
    capabilities.durability_max = durability_of(fixed[55], fixed[56])?;
    capabilities.survives = match fixed[57] {
        0 => Survives::Nothing,
        1 => Survives::ProcessKill,
        2 => Survives::PowerLoss,
        _ => return None,
    };
    Some(capabilities)
}
