//! Exports of volumes over a store that stalls, fails and answers late.

use std::sync::Arc;
use std::time::Duration;

use blocker::Error;
use nbd::{Export, Exports};
use test_kit::steered::{Op, SteeredStore, Verdict};
use volume_exports::VolumeExports;
use volumes::{Options, Settings, Volumes};

const SIZE_BYTES: u64 = 64 << 20;
/// The names of the volumes.
const NAMES: [&str; 2] = ["disk", "other"];

struct Site {
    store: Arc<SteeredStore>,
    volumes: Arc<Volumes>,
    exports: VolumeExports,
}

impl Site {
    async fn new() -> Self {
        let store = SteeredStore::new();
        let volumes = Arc::new(Volumes::new(Arc::clone(&store) as _, Options::new("volumes")).unwrap());
        for name in NAMES {
            volumes.create(name, SIZE_BYTES, Settings::default()).await.unwrap();
        }
        let exports = VolumeExports::new(Arc::clone(&volumes));
        Self { store, volumes, exports }
    }

    async fn open(&self, name: &str) -> Arc<dyn Export> {
        self.exports.open(name).await.unwrap()
    }

    async fn is_attached(&self, name: &str) -> bool {
        self.volumes.info(name).await.unwrap().owner.is_some()
    }
}

/// Lets every task run that can.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn reading_ahead_has_one_part_in_memory_at_a_time_and_an_end() {
    let site = Site::new().await;
    let disk = site.open("disk").await;
    for at in (0..SIZE_BYTES).step_by(4 << 20) {
        disk.write(at, vec![7; 4 << 20].into(), false).await.unwrap();
    }
    site.store.clear_log();
    site.store.hold(&[Op::Read]);
    let reading = tokio::spawn(disk.cache(100, SIZE_BYTES as u32 - 100).into_future());
    let mut bytes = 0;
    loop {
        settle().await;
        let held = site.store.held();
        let Some(call) = held.first() else { break };
        assert!(held.len() <= 2, "a part lies in two objects at most: {held:?}");
        bytes += call.len;
        site.store.answer(call.number);
    }
    reading.await.unwrap().unwrap();
    assert_eq!(bytes, 32 << 20);
}
