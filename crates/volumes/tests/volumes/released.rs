//! A hand-over whose last step, releasing the namespace in the store, has failed: it can be
//! repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blocker::executor::block_on;
use blocker::{Blocker, Control, Durability, Error as Store, Memory, Namespace, Reply};
use nbd::Exports;
use volumes::exports::VolumeExports;
use volumes::{Error, OpenOptions, Options, Volumes};

use super::disk::OBJECT;
use super::objects_of;

/// A store that sometimes fails to release a namespace's writer.
struct Forgetful {
    memory: Memory,
    failures_left: AtomicU32,
    released: AtomicU32,
}

impl Blocker for Forgetful {
    blocker::delegate!(|this| this.memory, except control);

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for Forgetful {
    fn below(&self) -> Option<&dyn Control> {
        Some(self.memory.control())
    }

    fn release(&self, _namespace: Namespace) -> Reply<()> {
        if self.failures_left.load(Ordering::Relaxed) > 0 {
            self.failures_left.fetch_sub(1, Ordering::Relaxed);
            return Reply::err(Store::Retryable("busy".into()));
        }
        self.released.fetch_add(1, Ordering::Relaxed);
        Reply::ok(())
    }
}

#[test]
fn a_hand_over_that_failed_after_the_volume_was_given_up_is_ended_by_another_call() {
    let (memory, zero) = (Memory::default(), AtomicU32::default);
    let store = Arc::new(Forgetful { memory, failures_left: zero(), released: zero() });
    let [one, two] = ["one", "two"].map(|name| {
        let options = Options { owner: name.to_owned(), ..Options::new("vol") };
        Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options).unwrap()
    });
    block_on(one.create("a", OBJECT, objects_of(OBJECT))).unwrap();
    let disk = block_on(one.open("a", OpenOptions::default())).unwrap();
    block_on(disk.write(0, b"one".into(), Durability::Cached)).unwrap();
    let before = store.released.load(Ordering::Relaxed);
    store.failures_left.store(1, Ordering::Relaxed);
    let failed = block_on(disk.hand_over("two"));
    assert!(matches!(failed, Err(Error::Io(Store::Retryable(_)))), "{failed:?}");
    assert!(disk.is_handed_over());
    assert_eq!(block_on(disk.hand_over("three")), Err(Error::HandedOver), "it is another owner's");
    assert_eq!(store.released.load(Ordering::Relaxed), before);
    block_on(disk.hand_over("two")).unwrap();
    assert_eq!(store.released.load(Ordering::Relaxed), before + 1);
    let disk = block_on(two.open("a", OpenOptions::default())).unwrap();
    assert_eq!(block_on(disk.read(0, 3)).unwrap().to_vec(), b"one");
}

#[tokio::test]
async fn an_export_whose_hand_over_has_failed_late_is_given_up_by_another_call() {
    for is_connected in [false, true] {
        let (memory, zero) = (Memory::default(), AtomicU32::default);
        let store = Arc::new(Forgetful { memory, failures_left: zero(), released: zero() });
        let options = Options { owner: "one".to_owned(), ..Options::new("vol") };
        let volumes = Arc::new(Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options).unwrap());
        volumes.create("a", OBJECT, objects_of(OBJECT)).await.unwrap();
        // From now on attaching the volume releases nothing in the store.
        volumes.open("a", OpenOptions::default()).await.unwrap().close().await.unwrap();
        let exports = VolumeExports::new(volumes);
        let connection = match is_connected {
            true => Some(exports.open("a").await.unwrap()),
            false => None,
        };
        store.failures_left.store(1, Ordering::Relaxed);
        let failed = exports.hand_over("a", "two").await;
        assert!(matches!(failed, Err(Error::Io(Store::Retryable(_)))), "{failed:?}");
        drop(connection);
        // What the end of the connection has started runs.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let before = store.released.load(Ordering::Relaxed);
        exports.hand_over("a", "two").await.unwrap();
        assert_eq!(store.released.load(Ordering::Relaxed), before + 1);
    }
}
