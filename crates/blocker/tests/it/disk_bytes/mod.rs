//! Arbitrary bytes as a file store's files: the store opens or reports the problem, and never
//! panics.
//!
//! The first byte selects the file for the remaining bytes: 0 the superblock, 1 the claims, 2 and
//! above the two copies of an object's header. Checksums are corrected, unless the first byte's top
//! bit is set, so that the decoders after the check are reached. With the next bit set, only the
//! first copy of the superblock or the claims is replaced.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::file::{Access, FileConfig};
use blocker::*;

const SLOT_STRIDE_BYTES: usize = 512;
const SLOT_BODY_BYTES: usize = 40;
const HEADER_BYTES: usize = 4096;

fn seal(body: &[u8]) -> Vec<u8> {
    [body, &crc32fast::hash(body).to_le_bytes()].concat()
}

fn object() -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap())
}

fn open(dir: &Path) -> Result<FileStore> {
    let config = FileConfig { threads: 0, access: Access::Create, ..FileConfig::default() };
    FileStore::open_with(dir, config, Arc::new(SystemClock))
}

/// Copies `program` into a store in `dir`, which must be empty, and which is left in an arbitrary
/// state.
pub(crate) fn run(dir: &Path, program: &[u8]) {
    let Some((which, bytes)) = program.split_first() else { return };
    let store = open(dir).unwrap();
    block_on(store.write(WriteRequest::new(object(), 0, b"before"))).unwrap();
    store.close().unwrap();
    drop(store);

    let is_sealed = which & 0x80 == 0;
    let content = |bytes: &[u8]| if is_sealed { seal(bytes) } else { bytes.to_vec() };
    let replace = |name: &str| {
        fs::write(dir.join(name), content(bytes)).unwrap();
        if which & 0x40 == 0 {
            fs::write(dir.join(format!("{name}.copy")), content(bytes)).unwrap();
        }
    };
    match which & 0x3f {
        0 => replace("superblock"),
        1 => replace("claims"),
        _ => {
            let mut header = vec![0; HEADER_BYTES];
            for (slot, bytes) in bytes.chunks(SLOT_BODY_BYTES).take(2).enumerate() {
                let at = slot * SLOT_STRIDE_BYTES;
                let mut body = bytes.to_vec();
                body.resize(SLOT_BODY_BYTES, 0);
                let sector = content(&body);
                header[at..at + sector.len()].copy_from_slice(&sector);
            }
            header.extend(b"after");
            fs::write(dir.join("objects/n.ns/o.obj"), header).unwrap();
        }
    }

    let Ok(store) = open(dir) else { return };
    use_it(&store);
    let _ = store.close();
    drop(store);
    // After accepting the input, the store must accept its own writes.
    match open(dir) {
        Ok(store) => use_it(&store),
        // The store has already been opened the maximum number of times.
        Err(Error::Unsupported(_)) => {}
        Err(error) => panic!("does not open again: {error}"),
    }
}

/// Uses the store. Any result is acceptable, but not a panic.
fn use_it(store: &FileStore) {
    let (object, stamp) = (object(), Stamp::new(u64::MAX, u64::MAX));
    let _ = block_on(store.list(ListRequest::new(object.namespace.clone())));
    let _ = block_on(store.info(InfoRequest::new(object.clone())));
    let _ = block_on(store.read(ReadRequest::new(object.clone(), 0, 4096)));
    let _ = block_on(store.write(WriteRequest::new(object.clone(), 3, b"new").stamp(stamp)));
    let _ = block_on(store.delete(DeleteRequest::new(object.clone())));
    let _ = block_on(store.write(WriteRequest::new(object.clone(), 0, b"again")));
    let _ = block_on(store.flush(FlushRequest::new(Scope::All)));
    let _ = block_on(store.claim(ClaimRequest::new(Scope::Object(object), Epoch(7), WriterId(1))));
}
