//! Typed metrics and losses as the payloads of answers.
//!
//! ```text
//! family  u8 length, name; u16 length, help; u8 kind (0 counter, 1 gauge, 2 histogram); u16 samples; each sample
//! sample  u8 labels; each: u8 length, name; u16 length, value
//!         counter    u64
//!         gauge      f64
//!         histogram  u16 buckets; each: f64 upper bound, u64 count; f64 sum; u64 count
//! loss    u8 length, namespace; u8 length, name; u64 changes; u64 bytes; u16 length, reason
//! ```

use blocker::metrics::{Families, Family, Kind, Label, Sample, Value};
use blocker::{Error, Loss, Name, Namespace, ObjectId};
use bytes::{Buf, Bytes};

use super::cost::CONTROL_BYTES_MAX;
use super::error::invalid;
use super::failure::{cut, read_reason};
use super::page::{put_name, take_name, take_u64};

/// The longest help text or label value, in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;
/// The longest name of a family or label, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The most labels of a sample.
const LABELS_MAX: usize = 32;
/// The most buckets of a histogram.
const BUCKETS_MAX: usize = 512;

/// Returns a page of `families` that fits one answer: those after the first `skip` samples. The flag is
/// whether there are more. What cannot be sent (names too long, too many labels or buckets) is left out.
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

/// Returns the most bytes that a sample takes.
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
        // The wire has whole counters only. The cast saturates.
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
/// [`Error::Invalid`] if the parts do not add up or are beyond a limit.
pub(super) fn decode_metrics(mut bytes: Bytes) -> Result<Families, Error> {
    let mut families = Families::new();
    while !bytes.is_empty() {
        let name = text(take_name(&mut bytes)?.into())?;
        let help = take_text(&mut bytes)?;
        let kind = match bytes.try_get_u8() {
            Ok(0) => Kind::Counter,
            Ok(1) => Kind::Gauge,
            Ok(2) => Kind::Histogram,
            _ => return Err(invalid("no such kind of metric")),
        };
        let count = take_u16(&mut bytes)?;
        let samples = (0..count).map(|_| take_sample(&mut bytes, kind)).collect::<Result<Vec<_>, _>>()?;
        families.add(Family { name: name.into(), help: help.into(), kind, samples });
    }
    Ok(families)
}

fn take_sample(bytes: &mut Bytes, kind: Kind) -> Result<Sample, Error> {
    let label_count = bytes.try_get_u8().map(usize::from).map_err(|_| invalid("a sample is cut off"))?;
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

/// The most bytes of a loss.
const LOSS_BYTES_MAX: usize = 2 * (1 + 255) + 8 + 8 + 2 + super::failure::REASON_BYTES_MAX;
/// The most losses of an answer.
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
/// [`Error::Invalid`] if the parts do not add up or there are too many.
pub(super) fn decode_losses(mut bytes: Bytes) -> Result<Vec<Loss>, Error> {
    let mut losses = Vec::new();
    while !bytes.is_empty() {
        if losses.len() == LOSSES_MAX {
            return Err(invalid("more losses than one answer may have"));
        }
        // Copies: a loss that is kept must not keep the whole payload.
        let namespace = Namespace::copy_from(&take_name(&mut bytes)?)?;
        let name = Name::copy_from(&take_name(&mut bytes)?)?;
        let (changes, lost_bytes) = (take_u64(&mut bytes)?, take_u64(&mut bytes)?);
        let length = usize::from(take_u16(&mut bytes)?);
        if bytes.len() < length {
            return Err(invalid("a reason is cut off"));
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
        return Err(invalid("a text is too long or cut off"));
    }
    text(bytes.split_to(length).into())
}

fn text(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| invalid("a text of a metric is not UTF-8"))
}

fn take_u16(bytes: &mut Bytes) -> Result<u16, Error> {
    bytes.try_get_u16_le().map_err(|_| invalid("a number is cut off"))
}

fn take_f64(bytes: &mut Bytes) -> Result<f64, Error> {
    bytes.try_get_f64_le().map_err(|_| invalid("a number is cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Between two families it is whole.
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
        // A family of one sample with 33 labels.
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
}
