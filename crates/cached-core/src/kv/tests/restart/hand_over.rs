//! Two stores on one file: one hands it over, and the other takes it.

use super::*;
use crate::arena::ArenaFileError;
use crate::kv::tests::value_of;
use crate::kv::{HandedOver, KvConfigError, StoreOptions};

/// Returns a store with items of every size, some of which expire at second `soon`.
fn filled(lab: &Lab, soon: u32) -> (Kv, Arc<TickClock>) {
    let (kv, clock) = open_with(&lab.path(), small());
    for n in 0..400u32 {
        let key = format!("key {n}").into_bytes();
        let expiry = if n % 4 == 0 { Expiry::at(soon) } else { Expiry::NEVER };
        let options = StoreOptions { client_flags: n, expiry, ..StoreOptions::default() };
        let bytes = if n % 50 == 7 { 20_000 } else { n as usize };
        kv.store(&key, kv.hash(&key), &value_of(n.into(), bytes), &options);
    }
    for n in (0..400u32).step_by(3) {
        kv.remove(format!("key {n}").as_bytes());
    }
    (kv, clock)
}

/// Opens the store on the file as another process would.
fn take(handed: &HandedOver, clock: &Arc<TickClock>, config: KvConfig) -> Result<Kv, KvConfigError> {
    let descriptor = handed.file().try_clone().unwrap();
    let file = ArenaFile::handed_over(handed.path(), descriptor, clock.now_secs()).unwrap();
    Kv::new(KvConfig { clock: clock.clone(), file: Some(file), ..config })
}

#[test]
fn the_other_process_has_every_item_and_the_lock() {
    let lab = Lab::new();
    let (old, clock) = filled(&lab, 1_000_000);
    let before = state(&old);
    let handed = old.hand_over().unwrap();
    let new = take(&handed, &clock, small()).unwrap();
    assert_eq!(new.restart().unwrap().damaged_items, 0);
    new.validate();
    assert_eq!(state(&new), before);
    new.confirm_hand_over();
    handed.forget();
    drop(old);
    assert!(matches!(ArenaFile::open(new.memory_file().unwrap()), Err(ArenaFileError::InUse(_))));
    new.set(b"later", b"value").unwrap();
    let before = state(&new);
    let path = new.memory_file().unwrap().to_owned();
    drop(new);
    let file = ArenaFile::open(&path);
    // The forgotten store is still in this process, and holds the lock.
    assert!(matches!(file, Err(ArenaFileError::InUse(_))));
    let copy = lab.path();
    copy_file(&path, &copy);
    let (again, _) = open_with(&copy, small());
    assert!(again.restart().unwrap().was_clean, "the end is that of the process that has the memory");
    assert_eq!(state(&again), before);
}

/// This process resumes with all items, whatever the other process did before it ended.
#[test]
fn a_store_goes_on_when_the_other_process_has_ended_without_it() {
    let lab = Lab::new();
    let soon = 500;
    let (old, clock) = filled(&lab, soon);
    let before = state(&old);
    for round in 0..4u32 {
        let handed = old.hand_over().unwrap();
        if round % 2 == 0 {
            // The other store frees regions, and clears the marks of ended items.
            let later = Arc::new(TickClock::starting_at(soon + 10));
            // The other store does not accept large items.
            let config = KvConfig { item_bytes_max: 10_000, ..small() };
            let new = take(&handed, &later, config).unwrap();
            let restart = new.restart().unwrap();
            assert!((restart.expired_items > 0 && restart.damaged_items > 0) || round > 0, "{restart:?}");
            drop(new);
        }
        handed.resume();
        old.validate();
        if round == 0 {
            // Items that the other store considered expired are expired for this one too, a moment
            // later.
            clock.set(soon + 10);
        }
        for (key, item) in &before {
            let found = old.get(key).map(|value| value.to_vec());
            let expected = (!item.expiry.is_past(soon + 10)).then(|| item.value.clone());
            assert_eq!(found, expected, "round {round}: {key:?}");
        }
        old.validate();
        for n in 0..2_000u32 {
            old.set(format!("round {round} key {n}").as_bytes(), &value_of(n.into(), 100)).unwrap();
            old.remove(format!("round {round} key {n}").as_bytes());
        }
    }
    let path = old.memory_file().unwrap().to_owned();
    let before = state(&old);
    drop(old);
    let (again, _) = open_with(&path, small());
    assert!(again.restart().unwrap().was_clean);
    again.validate();
    assert_eq!(state(&again), before);
}

#[test]
fn memory_that_does_not_fit_the_settings_is_refused_and_left_alone() {
    let lab = Lab::new();
    let (old, clock) = filled(&lab, 1_000_000);
    let before = state(&old);
    let handed = old.hand_over().unwrap();
    let larger = KvConfig { arena_bytes: 2 * small().arena_bytes, ..small() };
    for config in [larger, KvConfig { cas: false, ..small() }] {
        let error = take(&handed, &clock, config).err().unwrap();
        assert!(matches!(&error, KvConfigError::File(ArenaFileError::NotHandedOver { .. })), "{error}");
        assert!(error.to_string().contains("the settings have changed"), "{error}");
    }
    handed.resume();
    old.validate();
    assert_eq!(state(&old), before);
    assert!(Kv::new(small()).unwrap().hand_over().is_none(), "only memory in a file");
}
