//! The fields of a header that several operations share, each way: object, call, change, scope, policy.

use std::time::Duration;

use blocker::*;

use super::error::invalid;
use super::frame::Head;
use super::header::{Flags, Header};
use super::names::Names;

pub(super) fn put_object<'a>(names: &mut [&'a [u8]; 4], object: &'a ObjectId) {
    (names[0], names[1]) = (object.namespace.as_bytes(), object.name.as_bytes());
}

pub(super) fn object(head: &Head<'_>, names: &mut Names) -> Result<ObjectId, Error> {
    Ok(ObjectId::new(names.namespace(head.namespace)?, names.name(head.name)?))
}

/// The hint that a change gives a place to what was acknowledged before.
const SETTLES: u32 = 1 << 3;

pub(super) fn put_call(header: &mut Header, call: &Call, now: Timestamp) {
    if let Some(deadline) = call.deadline {
        header.flags.put(Flags::DEADLINE, true);
        // Rounded up: the caller's own timer decides.
        header.deadline_us = deadline.0.saturating_sub(now.0).div_ceil(1000);
    }
    header.hints = call.hints.bits() & !SETTLES;
    header.priority = match call.priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::Urgent => 2,
    };
}

pub(super) fn take_call(header: &Header, now: Timestamp) -> Call {
    let mut call = Call::default();
    if header.flags.has(Flags::DEADLINE) {
        call.deadline = Some(now + Duration::from_micros(header.deadline_us));
    }
    call.hints = Hints::from_bits(header.hints & !SETTLES);
    call.priority = match header.priority {
        0 => Priority::Low,
        2 => Priority::Urgent,
        _ => Priority::Normal,
    };
    call
}

pub(super) fn put_change<'a>(
    header: &mut Header,
    names: &mut [&'a [u8]; 4],
    object: &'a ObjectId,
    change: &Change,
) {
    put_object(names, object);
    (header.durability, header.replicas) = durability_bytes(change.durability);
    if let Some(stamp) = change.stamp {
        header.flags.put(Flags::STAMP, true);
        (header.epoch, header.sequence) = (stamp.epoch.0, stamp.sequence);
    }
    if let Some(domain) = change.domain {
        header.flags.put(Flags::DOMAIN, true);
        header.domain = domain.0;
    }
    (header.condition, header.version) = condition_bytes(change.condition);
    if change.settles {
        header.hints |= SETTLES;
    }
}

pub(super) fn take_change(header: &Header) -> Result<Change, Error> {
    let mut change = Change::default();
    let durability = durability_of(header.durability, header.replicas);
    change.durability = durability.ok_or_else(|| invalid("no such durability"))?;
    if header.flags.has(Flags::STAMP) {
        change.stamp = Some(Stamp::new(header.epoch, header.sequence));
    }
    if header.flags.has(Flags::DOMAIN) {
        change.domain = Some(OrderDomain(header.domain));
    }
    change.condition = condition_of(header.condition, header.version)?;
    change.settles = header.hints & SETTLES != 0;
    Ok(change)
}

pub(super) fn condition_bytes(condition: Condition) -> (u8, u64) {
    match condition {
        Condition::Absent => (1, 0),
        Condition::Present => (2, 0),
        Condition::Version(version) => (3, version.0),
        _ => (0, 0),
    }
}

pub(super) fn condition_of(code: u8, version: u64) -> Result<Condition, Error> {
    Ok(match code {
        0 => Condition::None,
        1 => Condition::Absent,
        2 => Condition::Present,
        3 => Condition::Version(Version(version)),
        _ => return Err(invalid("no such condition")),
    })
}

/// Puts a scope: it follows from which names are present, and from the flag of a domain.
pub(super) fn put_scope<'a>(header: &mut Header, names: &mut [&'a [u8]; 4], scope: &'a Scope) {
    match scope {
        Scope::Object(object) => put_object(names, object),
        Scope::Domain(namespace, domain) => {
            names[0] = namespace.as_bytes();
            header.flags.put(Flags::DOMAIN, true);
            header.domain = domain.0;
        }
        Scope::Namespace(namespace) => names[0] = namespace.as_bytes(),
        // All, and scopes of later versions: the wider scope is safe.
        _ => {}
    }
}

pub(super) fn take_scope(head: &Head<'_>, names: &mut Names) -> Result<Scope, Error> {
    let is_domain = head.header.flags.has(Flags::DOMAIN);
    Ok(match (head.namespace.is_empty(), head.name.is_empty(), is_domain) {
        (true, true, false) => Scope::All,
        (false, true, false) => Scope::Namespace(names.namespace(head.namespace)?),
        (false, true, true) => {
            Scope::Domain(names.namespace(head.namespace)?, OrderDomain(head.header.domain))
        }
        (false, false, false) => Scope::Object(object(head, names)?),
        _ => return Err(invalid("no such scope")),
    })
}

pub(super) fn policy_code(policy: &Policy) -> u64 {
    write_code(policy.write)
}

pub(super) fn write_code(write: WriteMode) -> u64 {
    match write {
        WriteMode::Back => 0,
        WriteMode::Through => 1,
        WriteMode::Around => 2,
        WriteMode::ReadOnly => 3,
    }
}

pub(super) fn policy_of(code: u64) -> Result<Policy, Error> {
    let mut policy = Policy::default();
    policy.write = write_of(code)?;
    Ok(policy)
}

pub(super) fn write_of(code: u64) -> Result<WriteMode, Error> {
    Ok(match code {
        0 => WriteMode::Back,
        1 => WriteMode::Through,
        2 => WriteMode::Around,
        3 => WriteMode::ReadOnly,
        _ => return Err(invalid("no such policy")),
    })
}

pub(super) fn dirty_data_code(dirty_data: DirtyData) -> u64 {
    match dirty_data {
        DirtyData::Refuse => 0,
        DirtyData::Store => 1,
        DirtyData::Discard => 2,
    }
}

pub(super) fn dirty_data_of(code: u64) -> Result<DirtyData, Error> {
    Ok(match code {
        0 => DirtyData::Refuse,
        1 => DirtyData::Store,
        2 => DirtyData::Discard,
        _ => return Err(invalid("no such way with dirty data")),
    })
}

/// Sets the flag and returns the CRC, if the payload is to be protected.
pub(super) fn protect(header: &mut Header, payload: &Segments, has_crc: bool) -> u32 {
    if !has_crc || payload.is_empty() {
        return 0;
    }
    header.flags.put(Flags::PAYLOAD_CRC, true);
    payload_crc(payload)
}

/// Returns the CRC-32 of a payload.
#[must_use]
pub fn payload_crc(payload: &Segments) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    payload.iter().for_each(|segment| crc.update(segment.as_slice()));
    crc.finalize()
}

pub(super) fn durability_bytes(durability: Durability) -> (u8, u8) {
    match durability {
        Durability::Cached => (0, 0),
        Durability::Journaled => (1, 0),
        Durability::Replicated(count) => (2, count),
        Durability::Stored => (3, 0),
    }
}

pub(super) fn durability_of(code: u8, replicas: u8) -> Option<Durability> {
    Some(match code {
        0 => Durability::Cached,
        1 => Durability::Journaled,
        2 => Durability::Replicated(replicas),
        3 => Durability::Stored,
        _ => return None,
    })
}

/// A flush of an earlier version has 0, and is answered with *stored*: so that is what 0 means in a flush.
pub(super) fn flush_durability_bytes(durability: Durability) -> (u8, u8) {
    match durability {
        Durability::Stored => (0, 0),
        // More than was asked for: a flush that guarantees nothing has no code.
        Durability::Cached => durability_bytes(Durability::Journaled),
        other => durability_bytes(other),
    }
}

pub(super) fn flush_durability_of(code: u8, replicas: u8) -> Option<Durability> {
    if code == 0 { Some(Durability::Stored) } else { durability_of(code, replicas) }
}
