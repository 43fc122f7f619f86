//! What a cache has of its namespaces, and settings to be changed, as payloads.
//!
//! ```text
//! state    u8 length, namespace; u8 write mode; u8 bits; u8 settings, each setting; u8 counts, each count
//! setting  u8 length, key; u8 has a value; u64 value, or 0
//! count    u8 length, name; u64
//! ```

use blocker::{Error, NAME_BYTES_MAX, Namespace, NamespaceKey, NamespaceSettings, NamespaceState};
use bytes::{Buf, Bytes};

use super::cost::CONTROL_BYTES_MAX;
use super::error::invalid;
use super::fields::{write_code, write_of};
use super::page::{put_name, take_name, take_u64};

/// The most settings of a namespace, and the most counts, in one frame.
pub(super) const NAMESPACE_SETTINGS_MAX: usize = 64;

const CHANGING: u8 = 1;
const CONFIGURED: u8 = 2;

/// Returns the bytes of settings, without the write mode.
pub(super) fn encode_settings(settings: &NamespaceSettings) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_settings(&mut bytes, settings);
    bytes
}

fn put_settings(bytes: &mut Vec<u8>, settings: &NamespaceSettings) {
    for (key, value) in settings.values() {
        put_name(bytes, key.name().as_bytes());
        bytes.push(u8::from(value.is_some()));
        bytes.extend_from_slice(&value.unwrap_or(0).to_le_bytes());
    }
}

/// Reads the settings of a request.
///
/// # Errors
/// [`Error::Invalid`] if the parts do not add up, there are too many, or a key is unknown.
pub(super) fn decode_settings(mut bytes: Bytes) -> Result<NamespaceSettings, Error> {
    let mut settings = NamespaceSettings::default();
    for _ in 0..NAMESPACE_SETTINGS_MAX {
        if bytes.is_empty() {
            return Ok(settings);
        }
        let (key, value) = take_setting(&mut bytes)?;
        settings.set(key.parse()?, value);
    }
    match bytes.is_empty() {
        true => Ok(settings),
        false => Err(invalid("more settings than one request may have")),
    }
}

fn take_setting(bytes: &mut Bytes) -> Result<(String, Option<u64>), Error> {
    let key = take_text(bytes)?;
    let has_value = take_u8(bytes)?;
    let value = take_u64(bytes)?;
    match (has_value, value) {
        (0, 0) => Ok((key, None)),
        (1, value) => Ok((key, Some(value))),
        _ => Err(invalid("a setting has a value or none")),
    }
}

/// Returns the bytes of as many states as one answer can have, and their number.
pub(super) fn encode_states(states: &[NamespaceState]) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    for (index, state) in states.iter().enumerate() {
        let before = bytes.len();
        put_state(&mut bytes, state);
        if bytes.len() as u64 > CONTROL_BYTES_MAX {
            bytes.truncate(before);
            return (bytes, index);
        }
    }
    (bytes, states.len())
}

fn put_state(bytes: &mut Vec<u8>, state: &NamespaceState) {
    put_name(bytes, state.namespace.as_bytes());
    // The codes are below 256.
    bytes.push(write_code(state.write) as u8);
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    bytes.push(bit(state.is_changing, CHANGING) | bit(state.is_configured, CONFIGURED));
    // At most NAMESPACE_SETTINGS_MAX of each.
    const { assert!(NamespaceKey::ALL.len() <= NAMESPACE_SETTINGS_MAX) };
    bytes.push(state.settings.values().len() as u8);
    put_settings(bytes, &state.settings);
    let counts = || {
        let counts = state.counts.iter().filter(|(name, _)| name.len() <= NAME_BYTES_MAX);
        counts.take(NAMESPACE_SETTINGS_MAX)
    };
    bytes.push(counts().count() as u8);
    for (name, count) in counts() {
        put_name(bytes, name.as_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
    }
}

/// Reads the states of an answer.
///
/// # Errors
/// [`Error::Invalid`] if the parts do not add up or are beyond a limit.
pub(super) fn decode_states(mut bytes: Bytes) -> Result<Vec<NamespaceState>, Error> {
    if bytes.len() as u64 > CONTROL_BYTES_MAX {
        return Err(invalid("more namespaces than one answer may have"));
    }
    let mut states = Vec::new();
    while !bytes.is_empty() {
        // A copy: a state that is kept must not keep the whole payload.
        let namespace = Namespace::copy_from(&take_name(&mut bytes)?)?;
        let mut state = NamespaceState::new(namespace, write_of(take_u8(&mut bytes)?.into())?);
        let bits = take_u8(&mut bytes)?;
        if bits & !(CHANGING | CONFIGURED) != 0 {
            return Err(invalid("a namespace has bits that mean nothing"));
        }
        (state.is_changing, state.is_configured) = (bits & CHANGING != 0, bits & CONFIGURED != 0);
        for _ in 0..take_count(&mut bytes)? {
            let (key, value) = take_setting(&mut bytes)?;
            // A newer server may have settings that this client does not know.
            if let Ok(key) = key.parse() {
                state.settings.set(key, value);
            }
        }
        for _ in 0..take_count(&mut bytes)? {
            state.counts.push((take_text(&mut bytes)?, take_u64(&mut bytes)?));
        }
        states.push(state);
    }
    Ok(states)
}

fn take_count(bytes: &mut Bytes) -> Result<u8, Error> {
    let count = take_u8(bytes)?;
    if usize::from(count) > NAMESPACE_SETTINGS_MAX {
        return Err(invalid("a namespace has too many settings or counts"));
    }
    Ok(count)
}

fn take_text(bytes: &mut Bytes) -> Result<String, Error> {
    let name = take_name(bytes)?;
    String::from_utf8(name.into()).map_err(|_| invalid("the key of a setting is not UTF-8"))
}

fn take_u8(bytes: &mut Bytes) -> Result<u8, Error> {
    bytes.try_get_u8().map_err(|_| invalid("a namespace is cut off"))
}

#[cfg(test)]
mod tests {
    use blocker::WriteMode;

    use super::*;

    fn state(name: String) -> NamespaceState {
        let mut state = NamespaceState::new(Namespace::new(name).unwrap(), WriteMode::ReadOnly);
        state.is_configured = true;
        let key = |number: usize| format!("{number:0>255}");
        state.settings = (0..).zip(NamespaceKey::ALL).fold(state.settings, |all, (n, key)| all.with(key, n));
        state.counts = (0..70).map(|number| (key(number), number as u64)).collect();
        state
    }

    #[test]
    fn a_page_ends_where_the_answer_does() {
        let states: Vec<_> = (0..50).map(|number| state(format!("{number:0>255}"))).collect();
        let (bytes, count) = encode_states(&states);
        assert!(count > 1 && count < 50 && bytes.len() as u64 <= CONTROL_BYTES_MAX, "{count}");
        let found = decode_states(bytes.into()).unwrap();
        assert_eq!((found.len(), &found[1].namespace), (count, &states[1].namespace));
        assert_eq!(found[0].settings, states[0].settings);
        assert_eq!(found[0].counts, states[0].counts[..NAMESPACE_SETTINGS_MAX]);
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let (good, _) = encode_states(&[state("vm".into())]);
        for length in 1..good.len() {
            assert!(decode_states(Bytes::copy_from_slice(&good[..length])).is_err(), "{length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode_states(bytes.into())
        };
        let key = NamespaceKey::DirtyBytesMax.name().len();
        for (at, byte) in [(3, 4), (4, 4), (5, 65), (5 + 1 + 1 + key, 2)] {
            assert!(changed(at, byte).is_err(), "{at}: {byte}");
        }
        let mut newer = good.clone();
        newer[7] = b'D';
        let known = decode_states(newer.into()).unwrap().remove(0).settings;
        assert_eq!(known.values().len(), NamespaceKey::ALL.len() - 1, "a key that is not known is skipped");
        let settings = NamespaceSettings::default().with(NamespaceKey::StoreWeight, None);
        let one = encode_settings(&settings);
        let most = one.repeat(NAMESPACE_SETTINGS_MAX);
        assert_eq!(decode_settings(most.clone().into()).unwrap(), settings);
        assert!(decode_settings([most, one.clone()].concat().into()).is_err(), "too many");
        assert!(decode_settings(one[..one.len() - 1].to_vec().into()).is_err());
        let mut unknown = one.clone();
        unknown[1] = b'S';
        let why = decode_settings(unknown.into()).unwrap_err().to_string();
        assert!(why.contains("\"Store_weight\"") && why.contains("store_weight"), "{why}");
        let mut none_with_value = one;
        let at = none_with_value.len() - 1;
        none_with_value[at] = 1;
        assert!(decode_settings(none_with_value.into()).is_err());
    }
}
