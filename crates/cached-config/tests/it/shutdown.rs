//! The shutdown of a cache: within the time limit, a failed flush that may succeed is retried.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::{
    Blocker, BlockerExt, ClaimRequest, Durability, Epoch, Error, Faulty, FileStore, FlushReply, FlushRequest,
    Memory, Name, Namespace, ObjectId, ReadRequest, Reply, Scope, SystemClock, WriteMode, WriteRequest,
    WriterId,
};
use cached_config::{ShutdownError, store_all};
use cached_core::object::{JournalOptions, ObjectCache, ObjectCacheConfig, OpenJournal, Writer};
use cached_journal::JournalConfig;
use test_kit::steered::{Op, SteeredStore, Verdict};

const MINUTE: Duration = Duration::from_secs(60);
/// An age at which nothing is stored while a test runs, however slow the disk is.
const DAY: Duration = Duration::from_secs(86_400);

fn cache(store: Arc<dyn Blocker>) -> ObjectCache {
    let config = ObjectCacheConfig { write: WriteMode::Back, ..ObjectCacheConfig::default() };
    let (cache, background) = ObjectCache::new(store, config, Arc::new(SystemClock)).unwrap();
    std::thread::spawn(move || block_on(background));
    cache
}

fn object() -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new("object").unwrap())
}

#[test]
fn a_retryable_error_is_tried_again_even_if_nothing_is_dirty() {
    let mut plan = FaultPlan::benign(3);
    plan.error_permille = 700;
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(FileStore::open_or_create(directory.path()).unwrap());
    let store = Arc::new(Faulty::new(files, plan, Arc::new(SystemClock)));
    let cache = cache(Arc::clone(&store) as _);
    cache.set_namespace(&object().namespace, &WriteMode::Through.into()).unwrap();
    let mut tries = 0;
    // Most first attempts fail, so that some of ten shutdowns need several.
    for _ in 0..10 {
        // The store has the data, and need not have stored them.
        while block_on(cache.write(WriteRequest::new(object(), 0, b"acknowledged"))).is_err() {}
        assert!(!cache.is_stored());
        let before = store.steps();
        block_on(store_all(&cache, MINUTE)).unwrap();
        tries += store.steps() - before;
    }
    assert!(tries > 10, "no flush has failed: nothing was tested");
}

/// An unavailable store does not delay the end of a cache that has stored everything, or has never
/// changed anything.
#[test]
fn a_store_that_has_everything_stored_is_not_asked() {
    let store = SteeredStore::new();
    let cache = cache(Arc::clone(&store) as _);
    for _ in 0..2 {
        store.rule(|_| Verdict::Fail(Error::Retryable("away".into())));
        store.clear_log();
        block_on(store_all(&cache, MINUTE)).unwrap();
        assert!(store.log().is_empty(), "{:?}", store.log());
        store.pass();
        block_on(cache.write(WriteRequest::new(object(), 0, b"acknowledged"))).unwrap();
        assert!(!cache.is_stored());
        block_on(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    }
    block_on(cache.write(WriteRequest::new(object(), 0, b"dirty"))).unwrap();
    store.rule(|_| Verdict::Fail(Error::Retryable("away".into())));
    let unfinished = block_on(store_all(&cache, Duration::from_millis(1))).unwrap_err();
    assert!(unfinished.dirty_bytes > 0, "{unfinished}");
}

#[test]
fn an_earlier_loss_is_reported_at_shutdown() {
    let store = Arc::new(Memory::default());
    let cache = cache(Arc::clone(&store) as _);
    let object = ObjectId::new(Namespace::new("n").unwrap(), Name::new("object").unwrap());
    block_on(cache.write(WriteRequest::new(object.clone(), 0, b"acknowledged"))).unwrap();
    block_on(store.claim(ClaimRequest::new(Scope::All, Epoch(1), WriterId(1)))).unwrap();
    block_on(cache.flush(FlushRequest::new(Scope::Object(object)))).unwrap_err();
    assert_eq!(cache.counters().dirty_bytes, 0);
    let unfinished = block_on(store_all(&cache, MINUTE)).unwrap_err();
    assert!(unfinished.dirty_bytes > 0 && unfinished.why.contains("n/object"), "{unfinished}");
}

/// A store that calls a function at each flush.
#[derive(Default)]
struct AtFlush(Memory, Mutex<Option<Box<dyn FnMut() + Send>>>);

impl Blocker for AtFlush {
    blocker::delegate!(|this| this.0, except flush);

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        if let Some(at_flush) = &mut *self.1.lock().unwrap() {
            at_flush();
        }
        self.0.flush(request)
    }
}

/// Clients write on while everything is stored to release the store.
#[test]
fn a_loss_is_reported_at_once_although_new_data_become_dirty() {
    let store = Arc::new(AtFlush::default());
    let cache = cache(Arc::clone(&store) as _);
    let (lost, busy) = (object(), ObjectId::new(object().namespace, Name::new("busy").unwrap()));
    for object in [&lost, &busy] {
        block_on(cache.write(WriteRequest::new(object.clone(), 0, b"acknowledged"))).unwrap();
    }
    let claim = ClaimRequest::new(Scope::Object(lost.clone()), Epoch(1), WriterId(1));
    block_on(store.0.claim(claim)).unwrap();
    block_on(cache.flush(FlushRequest::new(Scope::Object(lost)))).unwrap_err();
    let (writer, flushes) = (cache.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&flushes);
    *store.1.lock().unwrap() = Some(Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        block_on(writer.write(WriteRequest::new(busy.clone(), 0, b"and again"))).unwrap();
    }));
    let unfinished = block_on(store_all(&cache, Duration::from_secs(1))).unwrap_err();
    assert!(unfinished.why.contains("n/object"), "{unfinished}");
    assert_eq!(flushes.load(Ordering::SeqCst), 1, "another attempt reports the same");
}

/// Data that the store has not accepted in time are not lost if the journal has them: the next
/// process stores them. Without a journal, or in a namespace that is not journaled, they are lost.
#[test]
fn what_the_journal_has_is_no_loss() {
    for (is_journaled, is_logged) in [(true, true), (true, false), (false, false)] {
        let directory = tempfile::tempdir().unwrap();
        let store = SteeredStore::new();
        let mut config = ObjectCacheConfig {
            write: WriteMode::Back,
            writer: Writer::Cache,
            memory_bytes_max: 64 << 20,
            dirty_bytes_max: 4 << 20,
            dirty_age_max: DAY,
            ..ObjectCacheConfig::default()
        };
        if is_journaled {
            config.journal = Some(is_logged);
        }
        let mut builder = ObjectCache::builder(Arc::clone(&store) as _).config(config.clone());
        let journal = || {
            let config = JournalConfig {
                segment_bytes: 16 << 20,
                limit_bytes: 128 << 20,
                direct: false,
                ..JournalConfig::new(directory.path().join("journal"))
            };
            OpenJournal::open(&config).unwrap()
        };
        if is_journaled {
            builder = builder.journal(journal(), JournalOptions::default());
        }
        let cache = builder.start().unwrap();
        let object = ObjectId::new(Namespace::new("n").unwrap(), Name::new("object").unwrap());
        block_on(cache.write(WriteRequest::new(object.clone(), 0, vec![7; 5000]))).unwrap();
        store.rule(|call| match call.op.is_change() || call.op == Op::Flush {
            true => Verdict::Fail(Error::Retryable("away".into())),
            false => Verdict::Pass,
        });
        let ended = block_on(store_all(&cache, Duration::from_millis(300)));
        assert_eq!(ended.is_ok(), is_logged, "{ended:?}");
        drop(cache);
        store.pass();
        if is_logged {
            let next = ObjectCache::builder(Arc::clone(&store) as _).config(config);
            let next = next.journal(journal(), JournalOptions::default()).start().unwrap();
            block_on(next.begin_recovery()).unwrap();
            block_on(store_all(&next, MINUTE)).unwrap();
            assert_eq!(test_kit::content(store.memory(), &object).unwrap(), vec![7; 5000]);
        }
    }
}

#[test]
fn a_forced_end_states_what_the_journal_has() {
    let directory = tempfile::tempdir().unwrap();
    let config = ObjectCacheConfig {
        write: WriteMode::Back,
        writer: Writer::Cache,
        memory_bytes_max: 64 << 20,
        dirty_bytes_max: 4 << 20,
        ..ObjectCacheConfig::default()
    };
    let journal = JournalConfig {
        segment_bytes: 16 << 20,
        limit_bytes: 128 << 20,
        direct: false,
        ..JournalConfig::new(directory.path().join("journal"))
    };
    let builder = ObjectCache::builder(Arc::new(Memory::default())).config(config);
    let with =
        builder.journal(OpenJournal::open(&journal).unwrap(), JournalOptions::default()).start().unwrap();
    let text = ShutdownError::of_cache(&with, "a second signal forced the end").to_string();
    assert!(text.contains("the journal has what was acknowledged as journaled"), "{text}");
    let text = ShutdownError::of_cache(&cache(Arc::new(Memory::default())), "a second signal").to_string();
    assert!(!text.contains("journal"), "{text}");
}

/// The records of an object that can no longer be read from the journal are neither stored nor
/// dropped.
#[test]
fn what_could_not_be_recovered_is_reported_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = SteeredStore::new();
    let start = |journal: OpenJournal| {
        let config = ObjectCacheConfig {
            write: WriteMode::Back,
            writer: Writer::Cache,
            memory_bytes_max: 64 << 20,
            dirty_bytes_max: 4 << 20,
            dirty_age_max: DAY,
            ..ObjectCacheConfig::default()
        };
        let builder = ObjectCache::builder(Arc::clone(&store) as _).config(config);
        builder.journal(journal, JournalOptions::default()).start().unwrap()
    };
    let open = || {
        let config = JournalConfig {
            segment_bytes: 16 << 20,
            limit_bytes: 128 << 20,
            direct: false,
            ..JournalConfig::new(directory.path().join("journal"))
        };
        OpenJournal::open(&config).unwrap()
    };
    let object = |name| ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap());
    let write =
        |name, tag| WriteRequest::new(object(name), 0, vec![tag; 5000]).durability(Durability::Journaled);
    let cache = start(open());
    block_on(cache.write(write("damaged", 7))).unwrap();
    store.rule(|call| match call.op.is_change() || call.op == Op::Flush {
        true => Verdict::Fail(Error::Retryable("away".into())),
        false => Verdict::Pass,
    });
    block_on(store_all(&cache, Duration::from_millis(300))).unwrap();
    drop(cache);
    store.pass();
    for life in 0..2 {
        let journal = open();
        assert!(journal.records() > 0, "life {life}");
        if life == 0 {
            damage(&directory.path().join("journal"), &[7; 5000]);
        }
        let cache = start(journal);
        block_on(cache.begin_recovery()).unwrap();
        let read = block_on(cache.read(ReadRequest::new(object("damaged"), 0, 100)));
        assert!(matches!(read, Err(Error::Corrupt(_))), "life {life}: {read:?}");
        while !cache.recovery().is_done {
            std::thread::yield_now();
        }
        block_on(cache.write(write("other", life))).unwrap();
        let ended = block_on(store_all(&cache, MINUTE)).unwrap_err().to_string();
        assert!(ended.contains("1 objects could not be recovered"), "{ended}");
        assert!(ended.contains("cachectl journal export"), "{ended}");
        assert_eq!(test_kit::content(store.memory(), &object("other")).unwrap(), vec![life; 5000]);
        drop(cache);
    }
}

/// Changes a byte of a payload in a journal's directory.
fn damage(directory: &std::path::Path, payload: &[u8]) {
    let mut damaged = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        // The open journal prepares segments, and renames them, meanwhile.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if let Some(at) = bytes.windows(payload.len()).position(|run| run == payload) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[1], at as u64).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
}
