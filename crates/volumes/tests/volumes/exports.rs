//! Volumes over a file store, as exports: used directly, and through a server by qemu's tools.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use blocker::file::FileStore;
use nbd::protocol::{Context, Extent, NoExport, Zeroes};
use nbd::{Address, Exports, Server, ServerConfig};
use tempfile::TempDir;
use test_kit::outside;
use volumes::exports::VolumeExports;
use volumes::{Options, Settings, Volumes};

const SIZE_BYTES: u64 = 64 << 20;

async fn volumes(folder: &Path) -> Arc<Volumes> {
    let store = FileStore::open_or_create(folder.join("store")).unwrap();
    let volumes = Volumes::new(Arc::new(store), Options::new("volumes")).unwrap();
    if volumes.list().await.unwrap().volumes.is_empty() {
        volumes.create("disk", SIZE_BYTES, Settings::default()).await.unwrap();
        volumes
            .create("fixed", SIZE_BYTES, Settings { is_read_only: true, ..Settings::default() })
            .await
            .unwrap();
    }
    Arc::new(volumes)
}

#[tokio::test]
async fn a_volume_is_attached_while_it_has_connections() {
    let folder = TempDir::new().unwrap();
    let volumes = volumes(folder.path()).await;
    let exports = VolumeExports::new(Arc::clone(&volumes));
    assert_eq!(exports.list().await.unwrap(), ["disk", "fixed"]);
    assert_eq!(exports.describe("other").await.unwrap_err(), NoExport::Unknown);
    assert!(exports.describe("fixed").await.unwrap().read_only);
    let described = exports.describe("disk").await.unwrap();
    assert_eq!((described.size_bytes, described.read_only), (SIZE_BYTES, false));
    assert_eq!(volumes.info("disk").await.unwrap().owner, None);

    let first = exports.open("disk").await.unwrap();
    let second = exports.open("disk").await.unwrap();
    assert!(volumes.info("disk").await.unwrap().owner.is_some());
    assert_eq!(*first.description(), described);
    first.write(5000, vec![7; 10_000].into(), true).await.unwrap();
    assert_eq!(second.read(4999, 3).await.unwrap().to_vec(), [0, 7, 7]);
    second.write_zeroes(5000, 1, Zeroes::default()).await.unwrap();
    second.flush().await.unwrap();
    let extents = first.block_status(&Context::Allocation, 0, 64 << 20, false).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), SIZE_BYTES);
    assert_eq!(extents.first().map(|extent| extent.flags), Some(0));
    assert_eq!(extents.last().map(|extent| extent.flags), Some(Extent::hole(1).flags));
    // Changes after a snapshot are shown to connections that start after it.
    volumes.snapshot("disk", "monday").await.unwrap();
    first.write(8 << 20, vec![1; 4096].into(), false).await.unwrap();
    let third = exports.open("disk").await.unwrap();
    let monday = Context::ChangedSince("monday".into());
    assert!(third.description().contexts.contains(&monday));
    let changes = third.block_status(&monday, 4 << 20, 8 << 20, false).await.unwrap();
    let changes: Vec<_> = changes.iter().filter(|extent| extent.len_bytes > 0).copied().collect();
    assert_eq!(changes, [Extent { len_bytes: 4 << 20, flags: 0 }, Extent { len_bytes: 4 << 20, flags: 1 }]);
    drop(third);
    drop(first);
    assert_eq!(second.read(4999, 3).await.unwrap().to_vec(), [0, 0, 7]);
    drop(second);
    while volumes.info("disk").await.unwrap().owner.is_some() {
        tokio::task::yield_now().await;
    }
    // The volume can be opened again, with all of its data.
    let again = exports.open("disk").await.unwrap();
    assert_eq!(again.read(4999, 3).await.unwrap().to_vec(), [0, 0, 7]);
    assert!(exports.close().await.is_empty());
    assert_eq!(volumes.info("disk").await.unwrap().owner, None);
    assert!(again.read(0, 1).await.is_err(), "it was given up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_survives_its_way_through_a_volume_and_a_restart() {
    if !outside::are_installed("an image's way through a volume", &["qemu-img"]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    for at in [0_u64, 3 << 20, (4 << 20) - 100, 40 << 20] {
        let bytes: Vec<u8> = (0..100_000).map(|index| (index * 7 + at) as u8 | 1).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at).unwrap();
    }
    file.set_len(SIZE_BYTES).unwrap();
    let socket = folder.path().join("nbd.sock");
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let image = image.to_str().unwrap();
    for round in 0..2 {
        let exports = VolumeExports::new(volumes(folder.path()).await);
        let mut config = ServerConfig::default();
        // The other process may be delayed at any point.
        config.negotiation_timeout = Duration::from_secs(60);
        let server = Server::new(Arc::new(exports.clone()), config).unwrap();
        server.listen(&Address::Unix(socket.clone())).await.unwrap();
        if round == 0 {
            qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", "-m", "8", "-W", image, &uri]).await;
        }
        qemu_img(&["compare", "-f", "raw", "-F", "raw", image, &uri]).await;
        assert!(server.shutdown(Duration::from_secs(60)).await);
        assert!(exports.close().await.is_empty());
    }
}

async fn qemu_img(arguments: &[&str]) {
    let mut command = Command::new("qemu-img");
    command.args(arguments);
    let run = move || outside::run(&mut command, Duration::from_secs(120));
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "qemu-img {}: {}", output.status, outside::text(&output));
}
