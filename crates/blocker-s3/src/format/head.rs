//! The head of an object: its complete state except for blobs, in one small S3 object that is
//! compared and replaced; and the record of a scope: its claim, and the epochs announced by claims
//! of narrower scopes.
//!
//! ```text
//! magic [u8; 4] │ crc u32 │ kind u8 │ nonce u64 │ serial u64 │ recent [u64; 8] │ version u64
//! │ stamp? │ fence? │ claim? │ domains u16 × (domain u64, epoch u64)
//! │ size u64 │ blobs u16 × (id u128, length u64) │ extents u16 × (gap n, length n, source n, from n)
//! │ inline u32 × u8
//!
//! kind = 1: an object; 2: a ghost     ? = u8, 0: nothing follows      source = number of a blob + 1; 0: inline
//! stamp = epoch u64, sequence u64     fence = epoch u64               claim = state u8, epoch u64, writer u128
//!
//! record = magic [u8; 4] │ crc u32 │ nonce u64 │ claim │ narrower u64 │ domains u64 │ objects u64
//! │ length u8 │ namespace (empty in the record of everything)
//! ```
//!
//! Integers are little-endian; *n* is an integer in groups of seven bits, the lowest first, each
//! except the last with its top bit set. The *gap* is the distance from the end of the previous
//! extent. The CRC-32 covers everything after it.
//!
//! A *ghost* is a head that callers do not see as an object: one being created, or the memory of a
//! deletion. A new *nonce* is drawn for every body, so that no two bodies are equal: an ETag is a
//! digest of the body, and would otherwise recur. With *serial*, which counts the bodies, and the
//! *recent* earlier nonces, a writer whose response was lost finds out whether its body was stored.

use blocker::conditional::claims::Claim;
use blocker::{Epoch, OrderDomain, Stamp, WriterId};
use bytes::{BufMut, Bytes, BytesMut};

use super::content::{BLOBS_MAX, Blob, Content, EXTENTS_MAX, Extent, INLINE_BYTES_MAX, Source};
use super::{Reader, open, put_number, seal};
use crate::random;

pub(crate) const MAGIC: &[u8; 4] = b"cs3\x01";
pub(crate) const RECORD_MAGIC: &[u8; 4] = b"cs3r";
/// The number of earlier nonces that a head contains.
pub(crate) const RECENT: usize = 8;
/// The maximum number of order domains of one object.
pub(crate) const DOMAINS_MAX: usize = 64;
/// The maximum size of a record.
pub(crate) const RECORD_BYTES_MAX: u64 = 1024;
/// The maximum size of a head.
pub(crate) const HEAD_BYTES_MAX: u64 = 64 * 1024;

/// The state of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Whether this is the head of an object, and not a ghost.
    pub(crate) is_there: bool,
    pub(crate) nonce: u64,
    pub(crate) serial: u64,
    pub(crate) recent: [u64; RECENT],
    pub(crate) version: u64,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch below which no change is applied, or `None` if not yet known.
    pub(crate) fence: Option<u64>,
    /// The last claim of the object itself.
    pub(crate) claim: Claim,
    /// The fences of order domains.
    pub(crate) domains: Vec<(OrderDomain, u64)>,
    pub(crate) content: Content,
}

impl Head {
    /// Returns a new, empty ghost.
    pub(crate) fn ghost() -> Self {
        Self {
            is_there: false,
            nonce: random::number(),
            serial: random::number() >> 2,
            recent: [0; RECENT],
            // The version is random, so that the versions of a name do not start again after its
            // head was removed.
            version: random::number() >> 2,
            stamp: None,
            fence: None,
            claim: Claim::default(),
            domains: Vec::new(),
            content: Content::default(),
        }
    }

    /// Returns a copy of this head with a new nonce, to replace it.
    pub(crate) fn next(&self) -> Self {
        let mut next = self.clone();
        next.nonce = random::number();
        next.serial = self.serial.wrapping_add(1);
        next.recent.copy_within(..RECENT - 1, 1);
        next.recent[0] = self.nonce;
        next
    }

    /// Returns whether the body with `nonce` is this one, or was stored shortly before it. `serial`
    /// is the number of that body. Returns `None` if the body is older than the nonces that the
    /// head contains.
    pub(crate) fn has_been(&self, nonce: u64, serial: u64) -> Option<bool> {
        if self.nonce == nonce || self.recent.contains(&nonce) {
            return Some(true);
        }
        let age = self.serial.wrapping_sub(serial);
        // A head that was removed and created again has an unrelated count. In that case the body
        // is refused.
        (age <= RECENT as u64 || age > 1 << 32).then_some(false)
    }

    pub(crate) fn domain_fence(&self, domain: OrderDomain) -> Option<u64> {
        self.domains.iter().find(|(each, _)| *each == domain).map(|(_, epoch)| *epoch)
    }

    /// Sets the fence of a domain. Returns whether there was space.
    pub(crate) fn set_domain_fence(&mut self, domain: OrderDomain, epoch: u64) -> bool {
        self.domains.retain(|(each, _)| *each != domain);
        let has_room = self.domains.len() < DOMAINS_MAX;
        if has_room {
            self.domains.push((domain, epoch));
        }
        has_room
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut to = BytesMut::with_capacity(256 + self.content.inline.len());
        to.put_slice(MAGIC);
        to.put_u32_le(0);
        to.put_u8(if self.is_there { 1 } else { 2 });
        to.put_u64_le(self.nonce);
        to.put_u64_le(self.serial);
        self.recent.iter().for_each(|nonce| to.put_u64_le(*nonce));
        to.put_u64_le(self.version);
        to.put_u8(self.stamp.is_some().into());
        if let Some(stamp) = self.stamp {
            to.put_u64_le(stamp.epoch.0);
            to.put_u64_le(stamp.sequence);
        }
        to.put_u8(self.fence.is_some().into());
        if let Some(fence) = self.fence {
            to.put_u64_le(fence);
        }
        put_claim(&mut to, self.claim);
        to.put_u16_le(self.domains.len() as u16);
        for (domain, epoch) in &self.domains {
            to.put_u64_le(domain.0);
            to.put_u64_le(*epoch);
        }
        let content = &self.content;
        to.put_u64_le(content.size_bytes);
        to.put_u16_le(content.blobs.len() as u16);
        for blob in &content.blobs {
            to.put_u128_le(blob.id);
            to.put_u64_le(blob.len_bytes);
        }
        to.put_u16_le(content.extents.len() as u16);
        let mut end = 0;
        for extent in &content.extents {
            let source = match extent.source {
                Source::Inline => 0,
                Source::Blob(id) => {
                    1 + content.blobs.iter().position(|blob| blob.id == id).unwrap_or(0) as u64
                }
            };
            for number in [extent.at - end, extent.len_bytes, source, extent.from] {
                put_number(&mut to, number);
            }
            end = extent.end();
        }
        to.put_u32_le(content.inline.len() as u32);
        to.put_slice(&content.inline);
        seal(to)
    }

    /// Decodes a head. Returns `None` if this program never writes such bytes.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = open(MAGIC, bytes)?;
        let is_there = match from.u8()? {
            1 => true,
            2 => false,
            _ => return None,
        };
        let (nonce, serial) = (from.u64()?, from.u64()?);
        let mut recent = [0; RECENT];
        for each in &mut recent {
            *each = from.u64()?;
        }
        let version = from.u64()?;
        let stamp = match from.flag()? {
            true => Some(Stamp { epoch: Epoch(from.u64()?), sequence: from.u64()? }),
            false => None,
        };
        let fence = if from.flag()? { Some(from.u64()?) } else { None };
        let claim = read_claim(&mut from)?;
        let count = from.count(DOMAINS_MAX)?;
        let domains =
            (0..count).map(|_| Some((OrderDomain(from.u64()?), from.u64()?))).collect::<Option<_>>()?;
        let size_bytes = from.u64()?;
        let count = from.count(BLOBS_MAX)?;
        let blobs = (0..count).map(|_| Some(Blob { id: from.u128()?, len_bytes: from.u64()? }));
        let blobs = blobs.collect::<Option<Vec<_>>>()?;
        let count = from.count(EXTENTS_MAX)?;
        let mut extents = Vec::with_capacity(count);
        let mut end = 0_u64;
        for _ in 0..count {
            let (at, len_bytes) = (end.checked_add(from.number()?)?, from.number()?);
            let source = match from.number()? {
                0 => Source::Inline,
                number => Source::Blob(blobs.get(usize::try_from(number).ok()? - 1)?.id),
            };
            end = at.checked_add(len_bytes)?;
            extents.push(Extent { at, len_bytes, source, from: from.number()? });
        }
        let inline = usize::try_from(from.u32()?).ok().filter(|len| *len as u64 <= INLINE_BYTES_MAX)?;
        let inline = from.bytes(inline)?;
        let content = Content { size_bytes, inline, blobs, extents };
        let head = Self { is_there, nonce, serial, recent, version, stamp, fence, claim, domains, content };
        let is_empty_ghost = is_there || head.content == Content::default();
        (from.is_empty() && is_empty_ghost && head.content.is_sound()).then_some(head)
    }
}

fn put_claim(to: &mut BytesMut, claim: Claim) {
    match claim.epoch {
        0 => to.put_u8(0),
        epoch => {
            to.put_u8(if claim.is_held { 2 } else { 1 });
            to.put_u64_le(epoch);
            to.put_u128_le(claim.writer.map_or(0, |writer| writer.0));
        }
    }
}

fn read_claim(from: &mut Reader) -> Option<Claim> {
    let is_held = match from.u8()? {
        0 => return Some(Claim::default()),
        1 => false,
        2 => true,
        _ => return None,
    };
    let claim = Claim { is_held, epoch: from.u64()?, writer: Some(WriterId(from.u128()?)) };
    (claim.epoch > 0).then_some(claim)
}

/// A stored record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Record {
    /// The claim of the scope itself, with epoch 0 if there was none.
    pub(crate) claim: Claim,
    /// The highest epochs that narrower claims have announced: of any scope, of domains, of
    /// objects.
    pub(crate) narrower: u64,
    pub(crate) domains: u64,
    pub(crate) objects: u64,
    pub(crate) namespace: Bytes,
}

impl Record {
    pub(crate) fn encode(&self) -> Bytes {
        let mut to = BytesMut::with_capacity(128);
        to.put_slice(RECORD_MAGIC);
        to.put_u32_le(0);
        // Each body is unique, so that no ETag recurs.
        to.put_u64_le(random::number());
        put_claim(&mut to, self.claim);
        to.put_u64_le(self.narrower);
        to.put_u64_le(self.domains);
        to.put_u64_le(self.objects);
        to.put_u8(self.namespace.len() as u8);
        to.put_slice(&self.namespace);
        seal(to)
    }

    /// Decodes a record. Returns `None` if this program never writes such bytes.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = open(RECORD_MAGIC, bytes)?;
        from.u64()?;
        let claim = read_claim(&mut from)?;
        let (narrower, domains, objects) = (from.u64()?, from.u64()?, from.u64()?);
        let len = from.u8()?.into();
        let namespace = from.bytes(len)?;
        from.is_empty().then_some(Self { claim, narrower, domains, objects, namespace })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Head {
        let mut head = Head::ghost();
        head.is_there = true;
        head.stamp = Some(Stamp::new(3, 4));
        head.fence = Some(5);
        head.claim = Claim { epoch: 5, writer: Some(WriterId(9)), is_held: true };
        head.domains = vec![(OrderDomain(1), 2)];
        head.content = Content {
            size_bytes: 10_000,
            inline: Bytes::from_static(b"abc"),
            blobs: vec![Blob { id: 77, len_bytes: 4096 }],
            extents: vec![
                Extent { at: 1, len_bytes: 3, source: Source::Inline, from: 0 },
                Extent { at: 4096, len_bytes: 96, source: Source::Blob(77), from: 4000 },
            ],
        };
        head
    }

    #[test]
    fn what_is_written_is_read_back() {
        for head in [sample(), Head::ghost(), Head::ghost().next()] {
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
    }

    #[test]
    fn a_record_is_read_back() {
        let claim = Claim { epoch: 3, writer: Some(WriterId(4)), is_held: true };
        let namespace = Bytes::from(vec![7; 255]);
        let record = Record { claim, narrower: 1, domains: 2, objects: 3, namespace };
        assert!(record.encode().len() as u64 <= RECORD_BYTES_MAX);
        assert_ne!(record.encode(), record.encode(), "no two bodies are alike");
        for record in [record, Record::default()] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn the_largest_head_is_below_the_limit() {
        let mut head = sample();
        head.domains = (0..DOMAINS_MAX as u64).map(|domain| (OrderDomain(domain), 1)).collect();
        head.content.inline = vec![1; INLINE_BYTES_MAX as usize].into();
        head.content.blobs = (0..BLOBS_MAX as u128).map(|id| Blob { id, len_bytes: 1 << 20 }).collect();
        let piece = |index| {
            // This is the maximum distance in an object of 1 GiB.
            let (at, from) = (index << 20, (1 << 20) - 5000);
            Extent { at, len_bytes: 4096, source: Source::Blob(BLOBS_MAX as u128 - 1), from }
        };
        head.content.extents = (0..EXTENTS_MAX as u64).map(piece).collect();
        head.content.size_bytes = 1 << 30;
        let bytes = head.encode();
        assert!(bytes.len() as u64 <= HEAD_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(Head::decode(&bytes), Some(head.clone()));
        head.content.inline = Bytes::new();
        assert!(head.encode().len() <= 16_384, "{} bytes without inline bytes", head.encode().len());
    }

    #[test]
    fn a_head_of_more_than_any_object_may_be_is_none() {
        for (size_bytes, len_bytes) in [(u64::MAX, 4096), (10_000, u64::MAX), (10_000, 1 << 63)] {
            let mut head = sample();
            head.content.size_bytes = size_bytes;
            head.content.blobs = vec![Blob { id: 77, len_bytes }; 2];
            assert_eq!(Head::decode(&head.encode()), None);
        }
    }

    #[test]
    fn a_head_remembers_the_bodies_before_it() {
        let first = Head::ghost();
        let mut head = first.next();
        for _ in 0..RECENT - 1 {
            assert_eq!(head.has_been(first.nonce, first.serial), Some(true));
            head = head.next();
        }
        assert_eq!(head.has_been(first.nonce, first.serial), Some(true));
        assert_eq!(head.has_been(1, first.serial), Some(false), "one that never was, of the same serial");
        assert_eq!(head.next().has_been(first.nonce, first.serial), None);
    }

    /// Returns the bytes with a correct checksum, so that the inner decoder is reached.
    fn sealed(bytes: &[u8]) -> Bytes {
        let mut body = BytesMut::from(&MAGIC[..]);
        body.put_u32_le(0);
        body.put_slice(bytes);
        seal(body)
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Record::decode(&Bytes::from(bytes.clone()));
            let mut body = BytesMut::from(&RECORD_MAGIC[..]);
            body.put_u32_le(0);
            body.put_slice(&bytes);
            let _ = Record::decode(&seal(body));
        }

        #[test]
        fn any_bytes_are_a_head_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Head::decode(&Bytes::from(bytes.clone()));
            if let Some(head) = Head::decode(&sealed(&bytes)) {
                prop_assert!(head.content.is_sound());
            }
        }

        #[test]
        fn a_damaged_head_is_none_or_sound(at in 8_usize..300, value in any::<u8>(), cut in 0_usize..300) {
            let good = sample().encode();
            let mut bytes = good.to_vec();
            if at < bytes.len() && bytes[at] != value {
                bytes[at] = value;
                prop_assert_eq!(Head::decode(&Bytes::from(bytes.clone())), None);
                // With a correct checksum, only the checks of the fields can fail.
                if let Some(head) = Head::decode(&sealed(&bytes[8..])) {
                    prop_assert!(head.content.is_sound());
                    if head.content.blobs.is_empty() { head.content.inline_bytes_checked(); }
                }
            }
            if cut < good.len() {
                prop_assert_eq!(Head::decode(&good.slice(..cut)), None);
                prop_assert_eq!(Head::decode(&sealed(&good[8..cut.max(8)])), None);
            }
        }
    }

    impl Content {
        fn inline_bytes_checked(&self) {
            if self.size_bytes < 1 << 20 {
                let _ = self.inline_bytes();
            }
        }
    }
}
