//! The payloads of control operations: metrics, losses, and namespaces with their settings.

use blocker::metrics::{Families, Family, Kind, Label, Sample, Value};
use blocker::{
    Error, Loss, NAME_BYTES_MAX, Name, Namespace, NamespaceKey, NamespaceSettings, NamespaceState, ObjectId,
};
use bytes::{Buf, Bytes};

use super::answer::{put_name, take_name, take_u64};
use super::fields::{write_code, write_of};
use super::frame::invalid;
use super::notice::{cut, read_reason};
use super::op::CONTROL_BYTES_MAX;

/// The longest help text or label value, in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;
/// The maximum number of labels of a sample.
const LABELS_MAX: usize = 32;
/// The maximum number of buckets of a histogram.
const BUCKETS_MAX: usize = 512;

/// Returns a page of `families` that fits into one answer, beginning after the first `skip`
/// samples. The flag tells whether there are more. Samples that cannot be encoded (names too long,
/// too many labels or buckets) are left out.
pub fn metrics_page(families: Families, skip: u64) -> (Families, bool) {
    let mut page = Families::new();
    let (mut index, mut bytes) = (0_u64, 0);
    for family in families {
        let Family { name, help, kind, samples } = family;
        if name.len() > NAME_BYTES_MAX {
            continue;
        }
        let mut is_first = true;
        for sample in samples.into_iter().filter(|sample| is_encodable(sample, kind)) {
            index += 1;
            if index <= skip {
                continue;
            }
            let head_bytes = if is_first { 1 + name.len() + 2 + TEXT_BYTES_MAX + 1 + 2 } else { 0 };
            bytes += head_bytes + sample_bytes(&sample);
            if bytes as u64 > CONTROL_BYTES_MAX {
                return (page, true);
            }
            is_first = false;
            page.add(Family { name: name.clone(), help: help.clone(), kind, samples: vec![sample] });
        }
    }
    (page, false)
}

fn is_encodable(sample: &Sample, kind: Kind) -> bool {
    let has_few_buckets = match &sample.value {
        Value::Histogram { buckets, .. } => buckets.len() <= BUCKETS_MAX,
        _ => true,
    };
    let has_short_names = sample.labels.iter().all(|label| label.name.len() <= NAME_BYTES_MAX);
    sample.value.kind() == kind && has_few_buckets && has_short_names && sample.labels.len() <= LABELS_MAX
}

/// Returns an upper bound of a sample's length.
fn sample_bytes(sample: &Sample) -> usize {
    let label_bytes = |label: &Label| 1 + label.name.len() + 2 + label.value.len().min(TEXT_BYTES_MAX);
    let value_bytes = match &sample.value {
        Value::Histogram { buckets, .. } => 2 + buckets.len() * 16 + 16,
        _ => 8,
    };
    1 + sample.labels.iter().map(label_bytes).sum::<usize>() + value_bytes
}

pub(super) fn encode_metrics(families: &Families) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families {
        if family.name.len() > NAME_BYTES_MAX {
            continue;
        }
        put_name(&mut bytes, family.name.as_bytes());
        put_text(&mut bytes, &family.help);
        bytes.push(match family.kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 2,
        });
        let samples = || family.samples.iter().filter(|sample| is_encodable(sample, family.kind));
        let count = u16::try_from(samples().count()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        samples().take(count.into()).for_each(|sample| put_sample(&mut bytes, sample));
    }
    bytes
}

fn put_sample(bytes: &mut Vec<u8>, sample: &Sample) {
    // At most LABELS_MAX and BUCKETS_MAX, by `is_encodable`.
    bytes.push(sample.labels.len() as u8);
    for Label { name, value } in &sample.labels {
        put_name(bytes, name.as_bytes());
        put_text(bytes, value);
    }
    match &sample.value {
        Value::Counter(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        // The wire format has only whole counters. The cast saturates.
        Value::CounterFloat(value) => bytes.extend_from_slice(&(*value as u64).to_le_bytes()),
        Value::Gauge(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Value::Histogram { buckets, sum, count } => {
            bytes.extend_from_slice(&(buckets.len() as u16).to_le_bytes());
            for (bound, count) in buckets {
                bytes.extend_from_slice(&bound.to_le_bytes());
                bytes.extend_from_slice(&count.to_le_bytes());
            }
            bytes.extend_from_slice(&sum.to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
        }
    }
}

/// Reads the families of an answer.
///
/// # Errors
/// Returns [`Error::Invalid`] if the lengths of the parts do not add up or exceed a limit.
pub(super) fn decode_metrics(mut bytes: Bytes) -> Result<Families, Error> {
    let mut families = Families::new();
    while !bytes.is_empty() {
        let name = text(take_name(&mut bytes)?.into())?;
        let help = take_text(&mut bytes)?;
        let kind = match bytes.try_get_u8() {
            Ok(0) => Kind::Counter,
            Ok(1) => Kind::Gauge,
            Ok(2) => Kind::Histogram,
            _ => return Err(invalid("unknown kind of metric")),
        };
        let count = take_u16(&mut bytes)?;
        let samples = (0..count).map(|_| take_sample(&mut bytes, kind)).collect::<Result<Vec<_>, _>>()?;
        families.add(Family { name: name.into(), help: help.into(), kind, samples });
    }
    Ok(families)
}

fn take_sample(bytes: &mut Bytes, kind: Kind) -> Result<Sample, Error> {
    let label_count = bytes.try_get_u8().map(usize::from).map_err(|_| invalid("a sample is truncated"))?;
    if label_count > LABELS_MAX {
        return Err(invalid("a sample has too many labels"));
    }
    let mut labels = Vec::with_capacity(label_count);
    for _ in 0..label_count {
        let name = text(take_name(bytes)?.into())?;
        let value = take_text(bytes)?;
        labels.push(Label { name: name.into(), value: value.into() });
    }
    let value = match kind {
        Kind::Counter => Value::Counter(take_u64(bytes)?),
        Kind::Gauge => Value::Gauge(take_f64(bytes)?),
        Kind::Histogram => {
            let bucket_count = usize::from(take_u16(bytes)?);
            if bucket_count > BUCKETS_MAX {
                return Err(invalid("a histogram has too many buckets"));
            }
            let mut buckets = Vec::with_capacity(bucket_count);
            for _ in 0..bucket_count {
                buckets.push((take_f64(bytes)?, take_u64(bytes)?));
            }
            Value::Histogram { buckets, sum: take_f64(bytes)?, count: take_u64(bytes)? }
        }
    };
    Ok(Sample { labels, value })
}

/// The maximum number of bytes of a loss.
const LOSS_BYTES_MAX: usize = 2 * (1 + 255) + 8 + 8 + 2 + super::notice::REASON_BYTES_MAX;
/// The maximum number of losses of an answer.
pub const LOSSES_MAX: usize = CONTROL_BYTES_MAX as usize / LOSS_BYTES_MAX;

pub(super) fn encode_losses(losses: &[Loss]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for loss in losses.iter().take(LOSSES_MAX) {
        put_name(&mut bytes, loss.object.namespace.as_bytes());
        put_name(&mut bytes, loss.object.name.as_bytes());
        bytes.extend_from_slice(&loss.changes.to_le_bytes());
        bytes.extend_from_slice(&loss.bytes.to_le_bytes());
        let reason = cut(&loss.reason).as_bytes();
        bytes.extend_from_slice(&(reason.len() as u16).to_le_bytes());
        bytes.extend_from_slice(reason);
    }
    bytes
}

/// Reads the losses of an answer.
///
/// # Errors
/// Returns [`Error::Invalid`] if the lengths of the parts do not add up or there are too many
/// parts.
pub(super) fn decode_losses(mut bytes: Bytes) -> Result<Vec<Loss>, Error> {
    let mut losses = Vec::new();
    while !bytes.is_empty() {
        if losses.len() == LOSSES_MAX {
            return Err(invalid("more losses than one answer may have"));
        }
        // The names are copied, so that a retained loss does not keep the whole payload.
        let namespace = Namespace::copy_from(&take_name(&mut bytes)?)?;
        let name = Name::copy_from(&take_name(&mut bytes)?)?;
        let (changes, lost_bytes) = (take_u64(&mut bytes)?, take_u64(&mut bytes)?);
        let length = usize::from(take_u16(&mut bytes)?);
        if bytes.len() < length {
            return Err(invalid("a reason is truncated"));
        }
        let reason = read_reason(&bytes.split_to(length));
        losses.push(Loss::new(ObjectId::new(namespace, name), changes, lost_bytes, reason));
    }
    Ok(losses)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn take_text(bytes: &mut Bytes) -> Result<String, Error> {
    let length = usize::from(take_u16(bytes)?);
    if length > TEXT_BYTES_MAX || bytes.len() < length {
        return Err(invalid("a string is too long or truncated"));
    }
    text(bytes.split_to(length).into())
}

fn text(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| invalid("a string of a metric is not UTF-8"))
}

fn take_u16(bytes: &mut Bytes) -> Result<u16, Error> {
    bytes.try_get_u16_le().map_err(|_| invalid("a number is truncated"))
}

fn take_f64(bytes: &mut Bytes) -> Result<f64, Error> {
    bytes.try_get_f64_le().map_err(|_| invalid("a number is truncated"))
}

// ---- A cache's state of its namespaces, and settings to be changed, as payloads.
//
// ```text
// state    u8 length, namespace; u8 write mode; u8 bits; u8 settings, each setting; u8 counts, each count
// setting  u8 length, key; u8 has a value; u64 value, or 0
// count    u8 length, name; u64
// ```

/// The maximum number of settings of a namespace, and the maximum number of counts, in one frame.
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
/// Returns [`Error::Invalid`] if the lengths of the parts do not add up, there are too many parts,
/// or a key is unknown.
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
    let key = take_key(bytes)?;
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
/// Returns [`Error::Invalid`] if the lengths of the parts do not add up or exceed a limit.
pub(super) fn decode_states(mut bytes: Bytes) -> Result<Vec<NamespaceState>, Error> {
    if bytes.len() as u64 > CONTROL_BYTES_MAX {
        return Err(invalid("more namespaces than one answer may have"));
    }
    let mut states = Vec::new();
    while !bytes.is_empty() {
        // The name is copied, so that a retained state does not keep the whole payload.
        let namespace = Namespace::copy_from(&take_name(&mut bytes)?)?;
        let mut state = NamespaceState::new(namespace, write_of(take_u8(&mut bytes)?.into())?);
        let bits = take_u8(&mut bytes)?;
        if bits & !(CHANGING | CONFIGURED) != 0 {
            return Err(invalid("a namespace has unknown bits"));
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
            state.counts.push((take_key(&mut bytes)?, take_u64(&mut bytes)?));
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

fn take_key(bytes: &mut Bytes) -> Result<String, Error> {
    let name = take_name(bytes)?;
    String::from_utf8(name.into()).map_err(|_| invalid("the key of a setting is not UTF-8"))
}

fn take_u8(bytes: &mut Bytes) -> Result<u8, Error> {
    bytes.try_get_u8().map_err(|_| invalid("a namespace is truncated"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::WriteMode;

    fn sample() -> Families {
        let mut families = Families::new();
        for method in ["get", "set"] {
            let labels = vec![("method", method).into(), ("host", "ä").into()];
            families.sample("calls_total", "Calls.", labels, Value::Counter(u64::MAX));
        }
        families.sample("share", "A share.", vec![], Value::Gauge(-0.25));
        let histogram = Value::Histogram { buckets: vec![(0.5, 1), (f64::MAX, 2)], sum: 7.5, count: 3 };
        families.sample("sizes_bytes", "", vec![("op", "").into()], histogram);
        families
    }

    #[test]
    fn metrics_arrive_as_they_were_sent() {
        let (page, has_more) = metrics_page(sample(), 0);
        assert_eq!((&page, has_more), (&sample(), false));
        assert_eq!(decode_metrics(encode_metrics(&page).into()), Ok(sample()));
        assert_eq!(decode_metrics(Bytes::new()), Ok(Families::new()));
    }

    #[test]
    fn metrics_cut_anywhere_are_refused() {
        let bytes = encode_metrics(&sample());
        let mut whole = 0;
        for len in 1..bytes.len() {
            whole += u32::from(decode_metrics(bytes[..len].to_vec().into()).is_ok());
        }
        // A cut between two families leaves a valid payload.
        assert_eq!(whole, 2);
    }

    #[test]
    fn pages_have_every_sample_once_and_none_is_too_long() {
        let mut families = Families::new();
        for n in 0..40_000 {
            let labels = vec![("n", n.to_string()).into()];
            families.sample("many_total", "x".repeat(5000), labels, Value::Counter(n));
        }
        families.sample("n".repeat(256), "", vec![], Value::Counter(1));
        let (mut all, mut skip, mut pages) = (Families::new(), 0, 0);
        loop {
            let (page, has_more) = metrics_page(families.clone(), skip);
            let bytes = encode_metrics(&page);
            assert!(bytes.len() as u64 <= CONTROL_BYTES_MAX);
            let decoded = decode_metrics(bytes.into()).unwrap();
            skip += decoded.as_slice().iter().map(|family| family.samples.len() as u64).sum::<u64>();
            all.append(decoded);
            pages += 1;
            if !has_more {
                break;
            }
        }
        assert!(pages > 1);
        assert_eq!(all.as_slice().len(), 1);
        let [family] = all.as_slice() else { panic!("one family") };
        assert_eq!((family.samples.len(), family.help.len()), (40_000, TEXT_BYTES_MAX));
        assert_eq!(family.samples, families.get("many_total").unwrap().samples);
    }

    #[test]
    fn what_is_beyond_a_limit_is_left_out_or_refused() {
        let mut families = Families::new();
        let many = (0..=LABELS_MAX).map(|n| (format!("l{n}"), "x").into()).collect();
        families.sample("a", "", many, Value::Counter(1));
        let buckets = (0..=BUCKETS_MAX).map(|n| (n as f64, 0)).collect();
        families.sample("b", "", vec![], Value::Histogram { buckets, sum: 0.0, count: 0 });
        families.sample("c", "", vec![], Value::Counter(1));
        let (page, has_more) = metrics_page(families, 0);
        assert_eq!((page.as_slice().len(), has_more), (1, false));
        // The payload has a family of one sample with 33 labels.
        let wrong = [&[1, b'a', 0, 0, 0, 1, 0, 33][..], &[0; 200]].concat();
        assert!(decode_metrics(wrong.into()).is_err());
    }

    #[test]
    fn losses_arrive_as_they_were_sent() {
        let object =
            |name: &'static str| ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap());
        let losses =
            vec![Loss::new(object("a"), 1, 4096, "because".into()), Loss::new(object("b"), 2, 0, "".into())];
        let bytes = encode_losses(&losses);
        assert_eq!(decode_losses(bytes.clone().into()), Ok(losses.clone()));
        for len in 1..bytes.len() {
            let found = decode_losses(bytes[..len].to_vec().into());
            assert!(found.is_err() || found == Ok(losses[..1].to_vec()), "{len}");
        }
        let many = vec![losses[0].clone(); LOSSES_MAX + 1];
        assert_eq!(decode_losses(encode_losses(&many).into()).unwrap().len(), LOSSES_MAX);
    }

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
