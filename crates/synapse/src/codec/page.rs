//! The payloads of answers that are lists: entries of a listing, namespaces, names with values.

use blocker::{Error, ListEntry, NAME_BYTES_MAX, Name, Version};
use bytes::{Buf, Bytes};

use super::cost::CONTROL_ENTRIES_MAX;
use super::error::invalid;

/// ```text
/// +--------+----------------+----------------+----------------+
/// | u8 len |      name      |    u64 size    |  u64 version   |  for each entry
/// +--------+----------------+----------------+----------------+
/// ```
pub(super) fn encode_list(entries: &[ListEntry]) -> Vec<u8> {
    let names: usize = entries.iter().map(|entry| entry.name.as_bytes().len()).sum();
    let mut bytes = Vec::with_capacity(names + entries.len() * 17);
    for entry in entries {
        put_name(&mut bytes, entry.name.as_bytes());
        bytes.extend_from_slice(&entry.size_bytes.to_le_bytes());
        bytes.extend_from_slice(&entry.version.0.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_list(mut bytes: Bytes) -> Result<Vec<ListEntry>, Error> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        // A copy: an entry that is kept must not keep the whole payload.
        let name = Name::copy_from(&take_name(&mut bytes)?)?;
        let size_bytes = take_u64(&mut bytes)?;
        let version = Version(take_u64(&mut bytes)?);
        entries.push(ListEntry::new(name, size_bytes, version));
    }
    Ok(entries)
}

/// Returns the payload of names and values: each a name and a `u64`; those beyond [`CONTROL_ENTRIES_MAX`] are
/// left out.
pub(super) fn encode_values(values: &[(String, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in values.iter().take(CONTROL_ENTRIES_MAX) {
        put_name(&mut bytes, &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES_MAX)]);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_values(mut bytes: Bytes) -> Result<Vec<(String, u64)>, Error> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let name = String::from_utf8(take_name(&mut bytes)?.into());
        let name = name.map_err(|_| invalid("the name of a value is not UTF-8"))?;
        if values.len() == CONTROL_ENTRIES_MAX {
            return Err(invalid("more values than one answer may have"));
        }
        values.push((name, take_u64(&mut bytes)?));
    }
    Ok(values)
}

pub(super) fn put_name(bytes: &mut Vec<u8>, name: &[u8]) {
    // At most 255 bytes, by the name's type or cut by the caller.
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name);
}

pub(super) fn take_name(bytes: &mut Bytes) -> Result<Bytes, Error> {
    let length = bytes.try_get_u8().map(usize::from).map_err(|_| invalid("a name is cut off"))?;
    if bytes.len() < length {
        return Err(invalid("a name is cut off"));
    }
    Ok(bytes.split_to(length))
}

pub(super) fn take_u64(bytes: &mut Bytes) -> Result<u64, Error> {
    bytes.try_get_u64_le().map_err(|_| invalid("a number is cut off"))
}
