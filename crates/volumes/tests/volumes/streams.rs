//! Export and import: an imported volume equals the exported one.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Durability, Memory};
use volumes::{Error, Export, Import, OpenOptions, Options, Snapshot, StreamHeader, Volume, Volumes};

use super::objects_of;

const OBJECT: u64 = 4096;

fn volumes() -> Volumes {
    Volumes::new(Arc::new(Memory::default()), Options::new("vol")).unwrap()
}

fn made(volumes: &Volumes, name: &str, size_bytes: u64) -> Volume {
    block_on(volumes.create(name, size_bytes, objects_of(OBJECT))).unwrap();
    block_on(volumes.open(name, OpenOptions::default())).unwrap()
}

fn exported(from: Option<(&str, &Snapshot)>, to: (&str, &Snapshot)) -> Vec<u8> {
    let mut export = Export::new(from, to);
    let mut stream = Vec::new();
    while let Some(piece) = block_on(export.next()).unwrap() {
        stream.extend(piece.to_vec());
    }
    stream
}

/// Imports a stream that arrives in pieces of `piece` bytes.
fn imported(volume: &Volume, stream: &[u8], piece: usize) -> Result<(), Error> {
    let mut import = Import::new(volume.clone());
    for part in stream.chunks(piece) {
        block_on(import.take(part))?;
    }
    block_on(import.finish())
}

#[test]
fn a_full_and_an_incremental_stream_make_the_same_volume() {
    let volumes = volumes();
    let size = 5000 * OBJECT + 100;
    let disk = made(&volumes, "a", size);
    let write = |offset: u64, bytes: Vec<u8>| {
        block_on(disk.write(offset, bytes.into(), Durability::Cached)).unwrap();
    };
    write(3, test_kit::pattern(1, 3, 5000));
    write(4031 * OBJECT, test_kit::pattern(2, 0, 3 * OBJECT as usize));
    write(size - 50, vec![7; 50]);
    block_on(volumes.snapshot("a", "one")).unwrap();
    write(OBJECT + 5, b"changed".to_vec());
    block_on(disk.discard(4031 * OBJECT, OBJECT)).unwrap();
    // Data, and zeros.
    write(9 * OBJECT, vec![0; OBJECT as usize]);
    block_on(volumes.snapshot("a", "two")).unwrap();
    let snapshots = ["one", "two"].map(|name| block_on(volumes.open_snapshot("a", name)).unwrap());
    let full = exported(None, ("one", &snapshots[0]));
    let change = exported(Some(("one", &snapshots[0])), ("two", &snapshots[1]));
    assert!(change.len() < 3 * OBJECT as usize, "{}", change.len());
    for piece in [1, 7, 1 << 20] {
        let copy = made(&volumes, &format!("copy{piece}"), size);
        for (stream, snapshot) in [(&full, &snapshots[0]), (&change, &snapshots[1])] {
            imported(&copy, stream, piece).unwrap();
            for offset in [0, 8 * OBJECT, 4030 * OBJECT, 4998 * OBJECT] {
                let length = (5 * OBJECT).min(size - offset);
                let found = block_on(copy.read(offset, length)).unwrap().to_vec();
                test_kit::same(&found, &block_on(snapshot.read(offset, length)).unwrap().to_vec(), "a copy");
            }
        }
    }
    let holes = snapshots[0].extents();
    assert_eq!(holes.iter().map(|extent| extent.length).sum::<u64>(), size);
    assert!(matches!(block_on(snapshots[0].read(size, 1)), Err(Error::OutOfRange { .. })));
}

#[test]
fn the_stream_is_that_of_rbd() {
    let volumes = volumes();
    let disk = made(&volumes, "a", 2 * OBJECT);
    block_on(volumes.snapshot("a", "s")).unwrap();
    block_on(disk.write(0, vec![5; 2 * OBJECT as usize].into(), Durability::Cached)).unwrap();
    block_on(disk.discard(OBJECT, OBJECT)).unwrap();
    block_on(volumes.snapshot("a", "t")).unwrap();
    let [s, t] = ["s", "t"].map(|name| block_on(volumes.open_snapshot("a", name)).unwrap());
    let found = exported(Some(("s", &s)), ("t", &t));
    let mut wanted =
        b"rbd diff v1\nf\x01\0\0\0st\x01\0\0\0ts\0\x20\0\0\0\0\0\0w\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0"
            .to_vec();
    wanted.extend([5; OBJECT as usize]);
    wanted.extend(b"e");
    assert_eq!(found, wanted);
    // The object was never in the first snapshot, so the stream does not mention it; in the other
    // direction it does.
    let back = exported(Some(("t", &t)), ("s", &s));
    assert!(back.ends_with(b"z\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0e"), "{back:?}");
}

#[test]
fn a_stream_that_is_none_is_refused() {
    let volumes = volumes();
    let disk = made(&volumes, "a", 2 * OBJECT);
    let begin = b"rbd diff v1\n".to_vec();
    let sized = [&begin[..], b"s\0\x20\0\0\0\0\0\0"].concat();
    let range = |tag: &[u8], offset: u64, length: u64| {
        [&sized[..], tag, &offset.to_le_bytes(), &length.to_le_bytes()].concat()
    };
    let wrong = [
        b"rbd diff v2\n".to_vec(),
        begin.clone(),
        [&begin[..], b"q"].concat(),
        [&begin[..], b"f\xff\xff\xff\xffname"].concat(),
        [&begin[..], b"f\0\0\0\0"].concat(),
        [&begin[..], b"t\x02\0\0\0\xff\xff"].concat(),
        [&begin[..], b"s\0\x30\0\0\0\0\0\0"].concat(),
        [&begin[..], b"w\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0xe"].concat(),
        range(b"w", 2 * OBJECT, 1),
        range(b"z", u64::MAX, 2),
        range(b"w", 0, 5),
        [&sized[..], b"ee"].concat(),
        [&begin[..], b"e"].concat(),
        [&begin[..], b"t\x01\0\0\0at\x01\0\0\0b"].concat(),
        [&sized[..], b"f\x01\0\0\0ae"].concat(),
        [&begin[..], b"t\x01\0\0\0@"].concat(),
    ];
    for (at, stream) in wrong.iter().enumerate() {
        for piece in [1, 100] {
            let refused = imported(&disk, stream, piece);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{at}: {refused:?}");
        }
    }
    imported(&disk, &[&sized[..], b"e"].concat(), 100).unwrap();
}

#[test]
fn a_header_is_known_as_soon_as_it_is_there() {
    let volumes = volumes();
    drop(made(&volumes, "a", 7 * OBJECT));
    let long = "x".repeat(200);
    for name in ["s", &long] {
        block_on(volumes.snapshot("a", name)).unwrap();
    }
    let [s, t] = ["s", &long].map(|name| block_on(volumes.open_snapshot("a", name)).unwrap());
    for (stream, from) in
        [(exported(None, (&long, &t)), None), (exported(Some(("s", &s)), (&long, &t)), Some("s"))]
    {
        // Without ranges: a header, and the end.
        let length = stream.len() - 1;
        assert!(length <= StreamHeader::BYTES_MAX);
        for end in 0..length {
            assert_eq!(StreamHeader::decode(&stream[..end]), Ok(None), "{end} bytes");
        }
        for end in length..=stream.len() {
            let header = StreamHeader::decode(&stream[..end]).unwrap().unwrap();
            assert_eq!((header.from.as_deref(), header.size_bytes), (from, 7 * OBJECT));
            assert_eq!(header.to.as_ref(), Some(&long));
        }
    }
    for wrong in [&b"rbd diff v2\n"[..], b"rbd diff v1\nw", b"rbd diff v1\nq", b"rbd diff v1\nf\0\0\0\0"] {
        assert!(matches!(StreamHeader::decode(wrong), Err(Error::Invalid(_))), "{wrong:?}");
    }
}
