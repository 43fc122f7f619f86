//! Exports of volumes over a store that hangs, fails or answers late.

use std::sync::Arc;
use std::time::Duration;

use blocker::Error;
use nbd::protocol::wire::state;
use nbd::protocol::{Context, Extent, NoExport};
use nbd::{Export, Exports};
use test_kit::steered::{Op, SteeredStore, Verdict};
use volumes::exports::VolumeExports;
use volumes::{Options, Settings, Volumes};

use super::objects_of;

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

/// Lets every runnable task run.
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

#[tokio::test]
async fn clients_that_come_and_go_while_the_store_stalls_leave_one_opening() {
    let site = Site::new().await;
    site.store.hold(&[Op::Read, Op::Info]);
    site.store.clear_log();
    for _ in 0..20 {
        let opening = tokio::spawn(site.exports.open("disk"));
        settle().await;
        opening.abort();
    }
    // A cache below drops its entry for the name, and the name is read.
    assert_eq!(site.store.log().len(), 2, "{:?}", site.store.log());
    // The task itself, and the one of the last client, which is about to end.
    assert!(tokio::runtime::Handle::current().metrics().num_alive_tasks() <= 2);
    site.store.open();
    // The request in progress ends, and the unused volume is released.
    drop(site.open("disk").await);
    while site.is_attached("disk").await {
        settle().await;
    }
}

#[tokio::test]
async fn no_volume_is_attached_once_all_are_given_up() {
    let site = Site::new().await;
    let disk = site.open("disk").await;
    disk.write(0, vec![7; 4096].into(), false).await.unwrap();
    // One volume is being opened when all are released, and another request arrives meanwhile.
    site.store.hold(&[Op::Read]);
    let early = tokio::spawn(site.exports.open("other"));
    settle().await;
    let exports = site.exports.clone();
    let closing = tokio::spawn(async move { exports.close().await });
    settle().await;
    let late = tokio::spawn(site.exports.open("disk"));
    settle().await;
    site.store.open();
    assert_eq!(closing.await.unwrap(), []);
    assert_eq!(late.await.unwrap().err(), Some(NoExport::ShuttingDown));
    drop(early.await.unwrap());
    for name in NAMES {
        assert!(!site.is_attached(name).await, "{name} stays attached");
        assert_eq!(site.exports.open(name).await.err(), Some(NoExport::ShuttingDown));
    }
    // If the shutdown is cancelled, another server continues with them.
    site.exports.reopen();
    let disk = site.open("disk").await;
    assert_eq!(disk.read(0, 4096).await.unwrap().to_vec(), [7; 4096]);
}

#[tokio::test]
async fn a_volume_that_cannot_be_given_up_does_not_keep_others_from_it() {
    let site = Site::new().await;
    let exports = [site.open("disk").await, site.open("other").await];
    for export in &exports {
        export.write(0, vec![7; 4096].into(), false).await.unwrap();
    }
    // The first flush is for the volume that is first in order, and never ends.
    let mut is_first = true;
    site.store.rule(move |call| match call.op {
        Op::Flush if std::mem::take(&mut is_first) => Verdict::Hold,
        _ => Verdict::Pass,
    });
    let closing = tokio::spawn({
        let exports = site.exports.clone();
        async move { exports.close().await }
    });
    settle().await;
    let attached = [site.is_attached("disk").await, site.is_attached("other").await];
    assert_eq!(attached.iter().filter(|is_attached| **is_attached).count(), 1, "{attached:?}");
    site.store.open();
    assert_eq!(closing.await.unwrap(), []);
}

#[tokio::test]
async fn a_client_that_comes_back_does_not_wait_until_everything_is_stored() {
    let site = Site::new().await;
    let disk = site.open("disk").await;
    disk.write(0, vec![7; 4096].into(), false).await.unwrap();
    site.store.hold(&[Op::Flush]);
    drop(disk);
    settle().await;
    assert_eq!(site.store.held().len(), 1, "the volume is about to be given up");
    // Several clients that come and go meanwhile do not start anything further.
    for _ in 0..5 {
        let opening = tokio::spawn(site.exports.open("disk"));
        settle().await;
        assert!(opening.is_finished(), "it waits for the store");
        drop(opening.await.unwrap().unwrap());
        settle().await;
    }
    assert_eq!(site.store.held().len(), 1);
    let disk = site.open("disk").await;
    site.store.open();
    settle().await;
    assert!(site.is_attached("disk").await, "a connection has it");
    disk.write(4096, vec![8; 4096].into(), false).await.unwrap();
    drop(disk);
    while site.is_attached("disk").await {
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_given_up_though_the_thread_that_was_to_do_it_has_ended() {
    let site = Site::new().await;
    site.store.rule(|call| match call.op {
        Op::Flush => Verdict::Fail(Error::Retryable("the store is away".into())),
        _ => Verdict::Pass,
    });
    let exports = site.exports.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let disk = exports.open("disk").await.unwrap();
            disk.write(0, vec![7; 4096].into(), false).await.unwrap();
            drop(disk);
            settle().await;
        });
    });
    thread.join().unwrap();
    assert!(site.is_attached("disk").await);
    site.store.pass();
    drop(site.open("disk").await);
    settle().await;
    assert!(!site.is_attached("disk").await);
}

#[tokio::test]
async fn the_maps_of_snapshots_are_in_memory_one_at_a_time() {
    let site = Site::new().await;
    let disk = site.open("disk").await;
    disk.write(0, vec![7; 4096].into(), false).await.unwrap();
    site.volumes.snapshot("disk", "monday").await.unwrap();
    disk.write(8 << 20, vec![7; 4096].into(), false).await.unwrap();
    site.store.hold(&[Op::Read]);
    let monday = Context::ChangedSince("monday".into());
    let ask = |_| tokio::spawn(disk.block_status(&monday, 0, SIZE_BYTES as u32, false).into_future());
    let asked: Vec<_> = (0..20).map(ask).collect();
    settle().await;
    assert_eq!(site.store.held().len(), 1, "{:?}", site.store.held());
    site.store.open();
    for answer in asked {
        let extents = answer.await.unwrap().unwrap();
        let dirty = extents.iter().filter(|extent| extent.flags == state::DIRTY);
        assert_eq!(dirty.map(|extent| extent.len_bytes).collect::<Vec<_>>(), [4 << 20]);
    }
}

#[tokio::test]
async fn extents_of_very_many_objects_are_answered_in_part() {
    let site = Site::new().await;
    let settings = objects_of(4096);
    site.volumes.create("fine", 1 << 30, settings).await.unwrap();
    let disk = site.open("fine").await;
    let extents = disk.block_status(&Context::Allocation, 1 << 20, 1 << 29, false).await.unwrap();
    assert_eq!(extents, [Extent::hole(256 << 20)]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_could_not_be_given_up_is_given_up_later() {
    let site = Site::new().await;
    let flushes = || site.store.count(Op::Flush);
    let fail = || {
        site.store.rule(|call| match call.op {
            Op::Flush => Verdict::Fail(Error::Retryable("the store is away".into())),
            _ => Verdict::Pass,
        });
    };
    fail();
    // Connections that come and go meanwhile do not accumulate.
    for _ in 0..5 {
        let disk = site.open("disk").await;
        disk.write(0, vec![7; 4096].into(), false).await.unwrap();
        drop(disk);
        settle().await;
    }
    let before = flushes();
    tokio::time::sleep(Duration::from_secs(95)).await;
    let tries = flushes() - before;
    assert!((8..=10).contains(&tries), "{tries} in 95 s");
    assert!(site.is_attached("disk").await);
    // A volume that is in use again is left alone.
    let disk = site.open("disk").await;
    let before = flushes();
    tokio::time::sleep(Duration::from_secs(95)).await;
    assert_eq!(flushes(), before);
    drop(disk);
    settle().await;
    site.store.pass();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(!site.is_attached("disk").await);
    let disk = site.open("disk").await;
    assert_eq!(disk.read(0, 4096).await.unwrap().to_vec(), [7; 4096]);
}
