//! Functions for the fuzz target: decoders of a bucket's content, and of a server's responses. They
//! panic if an invariant is violated.

use blocker::{Namespace, ObjectId};
use bytes::{BufMut, Bytes, BytesMut};
use object_store::path::Path;

use crate::format;
use crate::format::content::{Content, Edit, Source};
use crate::format::head::{self, Head, Record};
use crate::format::layout::Layout;
use crate::server::refusal::Refusal;
use crate::start::Edition;

/// Decodes `data`; its first byte selects the kind.
///
/// # Panics
/// Panics if a decoded value is not encoded to the same bytes, or is inconsistent.
pub fn bucket(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    // Magic number and checksum are corrected, because random bytes would never pass these checks.
    let mended = |magic: &[u8; 4]| {
        let mut body = BytesMut::from(&magic[..]);
        body.put_u32_le(0);
        body.put_slice(bytes);
        format::seal(body)
    };
    match kind % 7 {
        0 => head(&Bytes::copy_from_slice(bytes)),
        1 => head(&mended(head::MAGIC)),
        2 => record(&Bytes::copy_from_slice(bytes)),
        3 => record(&mended(head::RECORD_MAGIC)),
        4 => key(bytes, true),
        5 => key(bytes, false),
        _ => answer(bytes),
    }
}

fn head(body: &Bytes) {
    let Some(head) = Head::decode(body) else { return };
    assert_eq!(Head::decode(&head.encode()).as_ref(), Some(&head));
    let next = head.next();
    assert_eq!(next.has_been(head.nonce, head.serial), Some(true));
    let Content { size_bytes, ref blobs, .. } = head.content;
    let mut content = head.content.clone();
    // Larger contents would only take more time.
    if blobs.is_empty() && size_bytes < 1 << 20 {
        assert_eq!(content.inline_bytes().len() as u64, size_bytes);
    }
    assert!(content.live_blob_bytes() <= size_bytes);
    assert!(content.islands().iter().all(|island| island.end <= size_bytes));
    assert!(content.pieces(size_bytes / 3..size_bytes).all(|piece| piece.end() <= size_bytes));
    let _ = content.is_fragmented();
    let at = size_bytes / 2;
    content.apply(&[Edit { at, len_bytes: 4096, from: None }], size_bytes, Source::Inline);
    content.tidy();
    assert!(content.is_sound());
}

fn record(body: &Bytes) {
    let Some(record) = Record::decode(body) else { return };
    assert_eq!(Record::decode(&record.encode()), Some(record));
}

/// Parses two strings separated by a zero byte: a segment that may stand for a namespace, and the
/// part of a key after the prefix.
fn key(bytes: &[u8], cuts: bool) {
    let _ = Edition::decode(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (segment, key) = text.split_once('\0').unwrap_or((text, text));
    let layout = Layout::new("a/b");
    layout.set_cuts(cuts);
    let namespace = match layout.namespace_of(segment) {
        Some(Ok(namespace)) => namespace,
        _ => Namespace::copy_from(b"vm").expect("a proper name"),
    };
    let Ok(path) = Path::parse(format!("a/b/h/n.vm/{key}")) else { return };
    if let Some(name) = layout.name_of(&path) {
        let vm = Namespace::copy_from(b"vm").expect("a proper name");
        assert_eq!(layout.head(&ObjectId::new(vm, name)), path);
    }
    if let Some(blob) = layout.blob_of(&path, &namespace) {
        let written = layout.blob(&blob.object, blob.blob);
        assert_eq!(layout.blob_of(&written, &namespace), Some(blob));
    }
    let _ = Layout::domain_of(&path);
}

/// Parses the text of an error, as the client reports a server's response.
fn answer(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let error = object_store::Error::Generic { store: "S3", source: text.into() };
    let _ = Refusal::is_slow_down(&error);
    if let Some(refusal) = Refusal::of(&error) {
        assert!(!refusal.error(&"key").to_string().contains('\n'));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns one input of each kind, as this program or a server writes it.
    fn seeds() -> Vec<Vec<u8>> {
        let mut head = Head::ghost();
        head.is_there = true;
        head.fence = Some(3);
        head.content.size_bytes = 9;
        head.content.inline = Bytes::from_static(b"inline");
        head.content.apply(&[Edit { at: 1, len_bytes: 6, from: Some(0) }], 9, Source::Inline);
        let (head, record) = (head.encode(), Record::default().encode());
        let long = "a".repeat(200);
        let key = format!("n.vm\0n/{long}_/_rest/{:032x}", 7);
        let answer =
            "Server returned non-2xx status code: 409 Conflict: <Code>ExistingObjectIsDirectory</Code>";
        let seed = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
        vec![
            seed(0, &head),
            seed(1, &head[8..]),
            seed(2, &record),
            seed(3, &record[8..]),
            seed(4, key.as_bytes()),
            seed(5, key.as_bytes()),
            seed(6, answer.as_bytes()),
        ]
    }

    #[test]
    fn the_seeds_are_decoded() {
        seeds().iter().for_each(|seed| bucket(seed));
        assert!(Head::decode(&Bytes::copy_from_slice(&seeds()[0][1..])).is_some());
        assert!(Record::decode(&Bytes::copy_from_slice(&seeds()[2][1..])).is_some());
    }

    proptest! {
        #[test]
        fn changed_seeds_break_no_rule(
            which in 0..7_usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
        ) {
            let mut seed = seeds().swap_remove(which);
            for (at, byte) in changes {
                let at = at.index(seed.len() - 1) + 1;
                seed[at] = byte;
            }
            if is_cut {
                seed.truncate(cut.index(seed.len()) + 1);
            }
            bucket(&seed);
        }
    }
}
