//! The file store on a real file system: its directory, its lock, and its costs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::file::{Access, FileConfig, check};
use blocker::metrics::Collect;
use blocker::*;

fn open(dir: &Path) -> Result<FileStore> {
    let config = FileConfig { threads: 0, access: Access::Create, ..FileConfig::default() };
    FileStore::open_with(dir, config, Arc::new(SystemClock))
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new(name.to_owned()).unwrap())
}

fn write(store: &FileStore, name: &str, data: Vec<u8>) {
    block_on(store.write(WriteRequest::new(object(name), 0, data))).unwrap();
}

#[test]
fn removing_a_file_admits_no_second_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    assert_eq!(open(dir.path()).map(drop).unwrap_err().kind(), "denied");
    assert_eq!(check(dir.path(), true, &mut |_| {}).unwrap_err().kind(), "denied");
    drop(store);
    open(dir.path()).unwrap();
}

#[test]
fn a_directory_of_something_else_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("precious"), b"data").unwrap();
    assert_eq!(open(dir.path()).map(drop).unwrap_err().kind(), "denied");
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["precious"]);
}

#[test]
fn what_lies_in_tmp_keeps_no_store_from_opening() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap().close().unwrap();
    std::fs::create_dir_all(dir.path().join("tmp/0/deep")).unwrap();
    std::fs::write(dir.path().join("tmp/left"), b"x").unwrap();
    let store = open(dir.path()).unwrap();
    assert!(!dir.path().join("tmp/left").exists());
    assert!(dir.path().join("tmp/0/deep").exists());
    block_on(store.write_full(WriteFullRequest::new(object("a"), b"x"))).unwrap();
}

#[test]
fn a_store_of_the_first_format_is_refused_with_a_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut superblock = b"cachedFS".to_vec();
    for field in [1_u32, 1, 1, 0, 0, 0] {
        superblock.extend(field.to_le_bytes());
    }
    superblock.extend(crc32fast::hash(&superblock).to_le_bytes());
    std::fs::write(dir.path().join("superblock"), superblock).unwrap();
    let refused = open(dir.path()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), "unsupported");
    assert!(
        refused.to_string().contains("copy the objects out with the program that wrote them"),
        "{refused}"
    );
}

#[test]
fn a_small_object_takes_one_block() {
    // A temporary directory in memory may count whole pages; the build's directory is on a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = open(dir.path()).unwrap();
    for (name, len, blocks) in [("small", 100, 1), ("packed", 3_072, 1), ("one", 3_073, 2), ("two", 4_096, 2)]
    {
        write(&store, name, vec![1; len]);
        block_on(store.write_full(WriteFullRequest::new(object(&format!("{name}-full")), vec![1; len])))
            .unwrap();
        block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
        for name in [name.to_owned(), format!("{name}-full")] {
            let file = dir.path().join(format!("objects/n.ns/{name}.obj"));
            let bytes = std::fs::metadata(file).unwrap().blocks() * 512;
            assert!(bytes <= blocks * 4_096, "{name} takes {bytes} bytes");
        }
    }
}

/// Measures the figures of docs/storage-contract.md: `cargo test -p cached-blocker --test it
/// file_store -- --ignored --nocapture`.
#[test]
#[ignore = "long: figures, a minute of them"]
fn figures() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = open(dir.path()).unwrap();
    let syncs =
        |store: &FileStore| store.families().number("file_syncs_total").map_or(0, |syncs| syncs.to_u64());
    let begun = std::time::Instant::now();
    for number in 0..100_000 {
        write(&store, &format!("object-{number:06}"), vec![1; 100]);
    }
    println!("100000 cached creations: {} syncs, {:?}", syncs(&store), begun.elapsed());
    let list = |store: &FileStore| {
        let (begun, before) = (std::time::Instant::now(), syncs(store));
        let (mut count, mut after) = (0, None);
        loop {
            let mut request = ListRequest::new(object("x").namespace);
            if let Some(name) = after {
                request = request.after(name);
            }
            let page = block_on(store.list(request)).unwrap();
            count += page.entries.len();
            after = page.entries.last().map(|entry| entry.name.clone());
            if !page.has_more {
                break;
            }
        }
        println!("listing {count}: {:?}, {} syncs", begun.elapsed(), syncs(store) - before);
    };
    list(&store);
    list(&store);
    drop(store);
    let begun = std::time::Instant::now();
    let store = open(dir.path()).unwrap();
    println!("opening after a crash: {:?}", begun.elapsed());
    list(&store);
    for number in 0..300 {
        let id = ObjectId::new(Namespace::new("t").unwrap(), Name::new(format!("{number}")).unwrap());
        block_on(store.write(WriteRequest::new(id.clone(), 0, b"x").stamp(Stamp::new(1, 1)))).unwrap();
        block_on(store.delete(DeleteRequest::new(id).stamp(Stamp::new(1, 2)))).unwrap();
    }
    let namespace = Namespace::new("t").unwrap();
    let claim = ClaimRequest::new(Scope::Namespace(namespace.clone()), Epoch(2), WriterId(1));
    block_on(store.claim(claim)).unwrap();
    let (begun, before) = (std::time::Instant::now(), syncs(&store));
    assert!(block_on(store.list(ListRequest::new(namespace))).unwrap().entries.is_empty());
    println!("listing that removes 300 tombstones: {:?}, {} syncs", begun.elapsed(), syncs(&store) - before);
    let begun = std::time::Instant::now();
    store.close().unwrap();
    println!("closing: {:?}", begun.elapsed());
}
