//! Clean ends, kills, and files that cannot be taken over.

use super::*;
use crate::arena::ArenaFileError;
use crate::kv::tests::value_of;
use crate::kv::{
    DeleteOptions, ImportOptions, Imported, KvConfigError, StoreMode, StoreOptions, StoreOutcome, policy,
};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;

/// Fills a store with items of every kind.
fn fill(kv: &Kv) {
    for n in 0..200u32 {
        let options = StoreOptions {
            client_flags: if n % 3 == 0 { n } else { 0 },
            expiry: if n % 2 == 0 { Expiry::after(kv.now_secs(), 1_000 + n) } else { Expiry::NEVER },
            ..StoreOptions::default()
        };
        let key = format!("key {n}").into_bytes();
        let bytes = if n % 50 == 7 { 20_000 } else { n as usize };
        let outcome = kv.store(&key, kv.hash(&key), &value_of(n.into(), bytes), &options);
        assert!(matches!(outcome, StoreOutcome::Stored { .. }), "{outcome:?}");
    }
    let options = DeleteOptions { invalidate: true, ..DeleteOptions::default() };
    kv.delete(b"key 5", kv.hash(b"key 5"), &options);
    assert!(kv.remove(b"key 6"));
    kv.set(b"key 7", b"no longer large").unwrap();
}

#[test]
fn a_clean_end_keeps_everything() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open(&path);
    assert_eq!(kv.restart().unwrap().cold.as_deref(), Some("the file is new"));
    fill(&kv);
    let before = state(&kv);
    assert_eq!(before.len(), 199);
    drop(kv);
    for _ in 0..2 {
        let (kv, _) = open(&path);
        let restart = kv.restart().unwrap();
        assert_eq!((restart.cold.as_deref(), restart.was_clean, restart.items), (None, true, 199));
        assert_eq!((restart.damaged_items, restart.damaged_regions, restart.replaced_items), (0, 0, 0));
        kv.validate();
        assert_eq!(state(&kv), before);
    }
}

#[test]
fn a_kill_keeps_everything() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    fill(&kv);
    // The value's reservation was started, but the value was never stored.
    let options = StoreOptions::default();
    let mut unfinished = kv.reserve(b"unfinished", kv.hash(b"unfinished"), 1_000, &options).unwrap();
    assert!(unfinished.write(&[1; 999]));
    let mut large = kv.reserve(b"large", kv.hash(b"large"), 50_000, &options).unwrap();
    assert!(large.write(&[1; 30_000]));
    kv.set(b"after it", b"value").unwrap();
    let before = state(&kv);
    let copy = lab.copy(&kv);
    let (again, _) = open(&copy);
    let restart = again.restart().unwrap();
    assert_eq!((restart.cold.as_deref(), restart.was_clean, restart.items), (None, false, 200));
    assert_eq!((restart.damaged_items, restart.damaged_regions), (0, 0));
    again.validate();
    assert_eq!(state(&again), before);
    again.remove(b"key 8");
    again.set(b"key 9", b"new").unwrap();
    let before = state(&again);
    let (third, _) = open(&lab.copy(&again));
    third.validate();
    assert_eq!(state(&third), before, "what was done after a restart outlives the next one");
    drop((unfinished, large));
}

#[test]
fn the_mark_stays_with_the_items() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open(&path);
    assert_eq!(kv.mark(), 0);
    kv.set(b"key", b"value").unwrap();
    kv.set_mark(u64::MAX - 1);
    let (killed, _) = open(&lab.copy(&kv));
    assert_eq!((killed.mark(), killed.get(b"key").is_some()), (u64::MAX - 1, true));
    drop(kv);
    let (kv, _) = open(&path);
    assert_eq!((kv.restart().unwrap().was_clean, kv.mark()), (true, u64::MAX - 1));
    drop(kv);
    // A damaged mark is noticed like other damage, and a store that starts empty has none.
    const MARK_AT: u64 = 1024 + 64;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for mark in [0, 7u64] {
        let (kv, _) = open(&path);
        kv.set(b"key", b"value").unwrap();
        kv.set_mark(9);
        drop(kv);
        file.write_all_at(&mark.to_le_bytes(), MARK_AT).unwrap();
        let (kv, _) = open(&path);
        assert_eq!((kv.restart().unwrap().cold.is_some(), kv.mark(), kv.get(b"key")), (true, 0, None));
    }
}

/// A store that was taken over evicts, compacts and flushes like any other.
#[test]
fn a_store_that_was_taken_over_goes_on() {
    for name in policy::NAMES {
        for evict in [true, false] {
            let lab = Lab::new();
            let config = || KvConfig { policy: policy::by_name(name).unwrap(), evict, ..small() };
            let (mut kv, _) = open_with(&lab.path(), config());
            let mut stored = 0;
            for round in 0..6u32 {
                for n in 0..1_500u32 {
                    let key = (round * 700 + n).to_le_bytes();
                    stored += u32::from(
                        kv.set(&key, &value_of(u64::from(round * 700 + n), 100 + n as usize % 900)).is_ok(),
                    );
                    if n % 5 == 0 {
                        kv.remove(&(round * 700 + n / 2).to_le_bytes());
                    }
                }
                kv.validate();
                let before = state(&kv);
                kv = open_with(&lab.copy(&kv), config()).0;
                kv.validate();
                assert_eq!(state(&kv), before, "{name}");
            }
            assert!(stored > 2_000, "{name}: only {stored} were stored");
            kv.flush_all();
            while kv.maintain() {}
            kv.validate();
            assert_eq!(kv.stats().items, 0);
        }
    }
}

#[test]
fn other_settings_start_cold() {
    let reason = |change: fn(KvConfig) -> KvConfig| {
        let lab = Lab::new();
        let path = lab.path();
        fill(&open(&path).0);
        let (kv, _) = open_with(&path, change(small()));
        kv.validate();
        assert_eq!(kv.stats().items, 0);
        kv.set(b"k", b"v").unwrap();
        drop(kv);
        let (kv, _) = open_with(&path, change(small()));
        assert_eq!((kv.restart().unwrap().cold.clone(), kv.get(b"k").as_deref()), (None, Some(&b"v"[..])));
        drop(kv);
        open(&path).0.restart().unwrap().cold.clone().unwrap()
    };
    assert!(reason(|config| KvConfig { arena_bytes: 2 << 20, ..config }).contains("bytes for items, not"));
    assert!(reason(|config| KvConfig { cas: false, ..config }).contains("without CAS"));
    assert!(reason(|config| KvConfig { policy: policy::by_name("mru").unwrap(), ..config }).contains("mru"));
    assert!(reason(|config| KvConfig { evict: false, ..config }).contains("eviction policy is none, not"));
}

/// The item size limit may change: items that exceed the new limit are left out.
#[test]
fn items_above_a_new_limit_are_left_out() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open(&path);
    kv.set(b"large", &[1; 100_000]).unwrap();
    kv.set(b"small", &[1; 1_000]).unwrap();
    drop(kv);
    let (kv, _) = open_with(&path, KvConfig { item_bytes_max: 50_000, ..small() });
    kv.validate();
    assert_eq!((kv.get(b"large"), kv.stats().items), (None, 1));
}

#[test]
fn files_that_are_no_memory_start_cold() {
    let lab = Lab::new();
    let good = lab.path();
    fill(&open(&good).0);
    let bytes = std::fs::read(&good).unwrap();
    let cold = |bytes: &[u8]| {
        let path = lab.path();
        std::fs::write(&path, bytes).unwrap();
        let (kv, _) = open(&path);
        kv.validate();
        let cold = kv.restart().unwrap().cold.clone();
        assert_eq!(kv.stats().items == 0, cold.is_some());
        kv.set(b"k", b"v").unwrap();
        assert_eq!(kv.get(b"k").as_deref(), Some(&b"v"[..]));
        cold
    };
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        cold(&bytes)
    };
    assert_eq!(cold(&bytes), None);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(cold(b""), some("the file is new"));
    assert_eq!(cold(&vec![0; 1 << 20]), some("the process that created the file did not complete it"));
    assert_eq!(cold(&bytes[..bytes.len() - 4096]), some("the file is shorter than it was"));
    assert_eq!(
        changed(8, &[9, 0]),
        some("the file has layout version 9, this program reads versions 1 to 2")
    );
    assert_eq!(changed(40, &[9]), some("the file does not match its checksum"));
    // The next two changes affect a recorded field and a record of the table.
    assert_eq!(changed(1024 + 8, &[9]), some("the file does not match its checksum"));
    assert_eq!(changed(4096 + 16, &[9]), some("the file does not match its checksum"));
    assert_eq!(changed(1024, &[0]), some("the process that created the file did not complete it"));
    // The file is marked as running in another boot of the machine.
    let other_boot = |state: u8| {
        let mut bytes = bytes.clone();
        bytes[1024] = state;
        bytes[1024 + 40] ^= 1;
        cold(&bytes)
    };
    assert!(other_boot(1).unwrap().starts_with("the system has rebooted since"));
    assert_eq!(other_boot(2), None, "after a clean end the boot does not matter");
}

/// A mistaken path does not destroy a file.
#[test]
fn a_file_of_something_else_is_refused_and_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let mut almost = b"cachedM".to_vec();
    almost.resize(8192, 0);
    for content in [&b"hello"[..], &vec![b'x'; 1 << 20], &almost] {
        let path = lab.path();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        for refused in [ArenaFile::open(&path).map(drop), ArenaFile::check(&path)] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, ArenaFileError::Foreign(_)), "{refused}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }
}

/// After a clean end, a changed region is left out, whichever of its bytes has changed.
#[test]
fn damaged_regions_are_left_out() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open(&path);
    fill(&kv);
    let (before, arena_bytes) = (state(&kv), kv.stats().arena_bytes);
    drop(kv);
    let bytes = std::fs::read(&path).unwrap();
    let arena_at = bytes.len() - arena_bytes;
    for at in [0, 10, 40, 60, 5_000, 65_536 + 100] {
        let copy = lab.path();
        std::fs::write(&copy, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
        file.write_all_at(&[!bytes[arena_at + at]], (arena_at + at) as u64).unwrap();
        let (kv, _) = open(&copy);
        kv.validate();
        assert_eq!(kv.restart().unwrap().damaged_regions, 1, "byte {at}");
        let after = state(&kv);
        assert!(after.len() < before.len(), "byte {at}");
        assert!(after.iter().all(|(key, seen)| before[key] == *seen), "byte {at}");
    }
}

#[test]
fn a_file_serves_one_store_at_a_time() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open(&path);
    assert!(matches!(ArenaFile::open(&path), Err(ArenaFileError::InUse(_))));
    drop(kv);
    assert!(ArenaFile::open(&path).is_ok());
    assert!(matches!(ArenaFile::open(lab.directory.path()), Err(ArenaFileError::NotAFile(_))));
    assert!(matches!(ArenaFile::open("/dev/null"), Err(ArenaFileError::NotAFile(_))));
    let missing = lab.directory.path().join("no/file");
    assert!(ArenaFile::open(missing).unwrap_err().to_string().contains("cannot open it"));
}

#[test]
fn time_passes_while_no_process_runs() {
    let lab = Lab::new();
    let path = lab.path();
    test_time::set(ZERO_UNIX_SECS);
    let (kv, clock) = open(&path);
    clock.advance(100);
    set_wall_clock(&clock);
    let keep = |kv: &Kv, key: &[u8], secs| {
        let options = StoreOptions { expiry: Expiry::after(kv.now_secs(), secs), ..StoreOptions::default() };
        assert!(matches!(kv.store(key, kv.hash(key), b"v", &options), StoreOutcome::Stored { .. }));
    };
    keep(&kv, b"ten", 10);
    keep(&kv, b"twenty", 20);
    kv.maintain();
    // The process is killed, and restarted after 15 seconds.
    let copy = lab.copy(&kv);
    let now = clock.now_secs();
    test_time::set(ZERO_UNIX_SECS + u64::from(now) + 15);
    let (kv, clock) = open(&copy);
    assert_eq!(clock.now_secs(), now + 15);
    assert_eq!((kv.get(b"ten"), kv.get(b"twenty").as_deref()), (None, Some(&b"v"[..])));
    assert_eq!(kv.restart().unwrap().expired_items, 1);
    kv.validate();
    // The wall clock went back. The store's clock stands still, but never goes back.
    test_time::set(ZERO_UNIX_SECS - 1_000_000);
    let (kv, clock) = open(&lab.copy(&kv));
    assert_eq!((clock.now_secs(), kv.get(b"twenty").as_deref()), (now + 15, Some(&b"v"[..])));
    // A clock behind the file's clock is refused, because items would live longer.
    let file = ArenaFile::open(lab.copy(&kv)).unwrap();
    let behind = Kv::new(KvConfig { clock: Arc::new(TickClock::new()), file: Some(file), ..small() });
    assert!(matches!(behind, Err(KvConfigError::ClockBehind { clock: 2, .. })), "{behind:?}");
}

#[test]
fn flushes_outlive_the_process() {
    let lab = Lab::new();
    let (kv, clock) = open(&lab.path());
    set_wall_clock(&clock);
    kv.set(b"before", b"v").unwrap();
    kv.set(b"large", &[1; 20_000]).unwrap();
    kv.flush_all();
    kv.set(b"after", b"v").unwrap();
    let (kv, clock) = open(&lab.copy(&kv));
    kv.validate();
    assert_eq!(state(&kv).keys().collect::<Vec<_>>(), [b"after"]);
    assert_eq!(kv.restart().unwrap().flushed_items, 2);
    // The flush is due later, in this process or in the next one.
    kv.flush_at(clock.now_secs() + 10);
    kv.maintain();
    let copy = lab.copy(&kv);
    let (again, clock) = open(&copy);
    assert_eq!(again.get(b"after").as_deref(), Some(&b"v"[..]));
    clock.advance(10);
    assert_eq!(again.get(b"after"), None);
    drop(again);
    let copy = lab.copy(&kv);
    test_time::set(ZERO_UNIX_SECS + u64::from(clock.now_secs()) + 100);
    let (again, _) = open(&copy);
    assert_eq!(again.get(b"after"), None, "it was due while no process ran");
    again.set(b"k", b"v").unwrap();
    let (third, _) = open(&lab.copy(&again));
    assert_eq!(third.get(b"k").as_deref(), Some(&b"v"[..]), "it runs once");
    // A cancelled flush stays cancelled.
    kv.flush_at(0);
    assert_eq!(open(&lab.copy(&kv)).0.get(b"after").as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_the_flush_of_a_prefix_has_ended_does_not_come_back() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    for n in 0..2_000u32 {
        kv.set(format!("user:{n}").as_bytes(), b"v").unwrap();
        kv.set(format!("page:{n}").as_bytes(), b"v").unwrap();
    }
    let before = state(&kv);
    kv.flush_prefix(b"user:").unwrap();
    kv.set(b"user:again", b"v").unwrap();
    let (again, _) = open(&lab.copy(&kv));
    again.validate();
    let after = state(&again);
    assert!(before.keys().filter(|key| key.starts_with(b"page:")).all(|key| after.contains_key(key)));
    let users: Vec<_> = after.keys().filter(|key| key.starts_with(b"user:")).collect();
    assert_eq!(users, [b"user:again"]);
}

/// Values stored after a flush stay, even if some of their pieces are in regions from before it.
#[test]
fn a_large_value_stored_across_a_flush_stays() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    let mut reservation = kv.reserve(b"large", kv.hash(b"large"), 40_000, &StoreOptions::default()).unwrap();
    assert!(reservation.write(&value_of(1, 40_000)));
    kv.flush_all();
    assert!(matches!(reservation.commit(), StoreOutcome::Stored { .. }));
    let (mut kv, _) = open(&lab.copy(&kv));
    for _ in 0..2 {
        kv.validate();
        assert_eq!(kv.get(b"large").unwrap(), value_of(1, 40_000));
        while kv.maintain() {}
        kv = open(&lab.copy(&kv)).0;
    }
}

#[test]
fn no_cas_value_is_given_twice() {
    let lab = Lab::new();
    let mut given = HashSet::new();
    let mut kv = open(&lab.path()).0;
    for round in 0..6u32 {
        for n in 0..2_000u32 {
            let key = (n % 300).to_le_bytes();
            match kv.store(&key, kv.hash(&key), b"v", &StoreOptions::default()) {
                StoreOutcome::Stored { cas, .. } => {
                    assert!(given.insert(cas), "{cas} again in round {round}");
                }
                outcome => panic!("{outcome:?}"),
            }
            kv.remove(&key);
        }
        if round % 2 == 0 {
            kv = open(&lab.copy(&kv)).0;
        } else {
            let path = kv.memory_file().unwrap().to_owned();
            drop(kv);
            kv = open(&path).0;
        }
    }
    let (_, highest) = {
        kv.set(b"k", b"v").unwrap();
        kv.get_with_cas(b"k").unwrap()
    };
    let stored = kv.compare_and_set(b"k", b"w", highest);
    assert!(stored.is_ok());
}

/// A process that is killed before it assigns a value of its own leaves imported items behind.
#[test]
fn no_imported_cas_value_is_given_again() {
    const IMPORTED: u64 = 1 << 40;
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    let options = ImportOptions { cas: IMPORTED, ..ImportOptions::default() };
    assert_eq!(kv.import(b"k", kv.hash(b"k"), b"v", &options), Ok(Imported::Stored));
    kv.raise_cas(IMPORTED);
    let (again, _) = open(&lab.copy(&kv));
    assert_eq!(again.get_with_cas(b"k"), Some((b"v".to_vec(), IMPORTED)));
    for shard in again.inner.index.shards() {
        assert!(shard.next_cas() > IMPORTED);
    }
}

/// CAS values assigned since a bound was recorded are below the next bound, even if very many have
/// been assigned.
#[test]
fn cas_values_go_on_across_bounds() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..(3 << 19) {
            let cas = kv.inner.index.shards()[0].next_cas();
            assert!(cas > last && cas < kv.inner.log.superblock.notes().cas_bound(), "{cas} after {last}");
            last = cas;
        }
    }
    let (again, _) = open(&lab.copy(&kv));
    assert!(again.inner.index.shards()[0].next_cas() > last);
}

#[test]
fn stores_without_a_file_have_no_restart() {
    let (kv, _) = crate::kv::tests::store_with(small());
    assert_eq!((kv.restart(), kv.memory_file()), (None, None));
}

/// In a store without CAS values entries may be as small as twelve bytes.
#[test]
fn the_smallest_items_are_kept() {
    let lab = Lab::new();
    let config = || KvConfig { cas: false, ..small() };
    let (kv, _) = open_with(&lab.path(), config());
    for n in 0..=255u8 {
        let options = StoreOptions { mode: StoreMode::Add, ..StoreOptions::default() };
        kv.store(&[n], kv.hash(&[n]), if n % 2 == 0 { b"" } else { b"v" }, &options);
    }
    let before = state(&kv);
    assert_eq!(before.len(), 256);
    let (again, _) = open_with(&lab.copy(&kv), config());
    again.validate();
    assert_eq!(state(&again), before);
}

#[test]
fn the_file_is_private_and_its_users_own() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let lab = Lab::new();
    let path = lab.path();
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(ArenaFile::open(&path).unwrap());
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let other = 65_534;
    if let Err(error) = std::os::unix::fs::chown(&path, Some(other), None) {
        // Only root can change the owner of a file.
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        return test_kit::outside::skip("a memory file of another user", "only root can make one");
    }
    let refused = ArenaFile::open(&path).unwrap_err();
    assert!(matches!(refused, ArenaFileError::NotOwned { owner, .. } if owner == other), "{refused}");
}
