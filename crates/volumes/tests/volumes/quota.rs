//! A quota: a write for which there is no space is refused before it is acknowledged, and
//! acknowledged data can always be stored.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Blocker, Durability, Memory, Namespace};
use test_kit::rng::Rng;
use volumes::{Error, OpenOptions, Options, Result, Settings, Volume, Volumes};

use super::disk::OBJECT;
use super::objects_of;

const OBJECTS: u64 = 24;
const CELL: u64 = 512;
const CELLS: u64 = OBJECTS * OBJECT / CELL;
/// The size of a page of the map.
const PAGE_BYTES: u64 = 32 << 10;

fn volumes_of(store: &Arc<Memory>, records_at_once: bool) -> Volumes {
    let options = Options { records_at_once, ..Options::new("vol") };
    Volumes::new(Arc::clone(store) as Arc<dyn Blocker>, options).unwrap()
}

fn opened(volumes: &Volumes) -> Volume {
    block_on(volumes.open("a", OpenOptions::default())).unwrap()
}

fn used_bytes(store: &Memory) -> u64 {
    let namespace = Namespace::copy_from(b"vol.0000001").unwrap();
    block_on(store.control().quota(namespace)).unwrap().used_bytes
}

fn write(disk: &Volume, object: u64, byte: u8, length: u64) -> Result<()> {
    let bytes = vec![byte; length as usize];
    block_on(disk.write(object * OBJECT, bytes.into(), Durability::Cached)).map(drop)
}

fn byte(disk: &Volume, object: u64) -> u8 {
    block_on(disk.read(object * OBJECT, 1)).unwrap().to_vec()[0]
}

/// Creates a volume with space for `objects` objects besides its head, and opens it.
fn limited(store: &Arc<Memory>, objects: u64) -> (Volumes, Volume) {
    let volumes = volumes_of(store, false);
    let settings = objects_of(OBJECT);
    block_on(volumes.create("a", OBJECTS * OBJECT, settings)).unwrap();
    let bytes_max = used_bytes(store) + objects * OBJECT;
    block_on(volumes.set("a", Settings { quota_bytes_max: Some(bytes_max), ..settings })).unwrap();
    let disk = opened(&volumes);
    (volumes, disk)
}

#[test]
fn what_was_acknowledged_until_the_quota_was_used_up_is_stored() {
    let store = Arc::new(Memory::default());
    let (volumes, disk) = limited(&store, 5);
    let written = (0..OBJECTS).take_while(|object| match write(&disk, *object, 7, OBJECT) {
        Ok(()) => true,
        Err(error) => {
            assert!(matches!(error, Error::NoSpace(_)), "{error}");
            false
        }
    });
    assert!((4..=5).contains(&written.count()));
    // The map does not have a page yet.
    block_on(disk.flush()).unwrap();
    block_on(disk.close()).unwrap();
    let disk = opened(&volumes);
    assert_eq!((byte(&disk, 3), byte(&disk, 6)), (7, 0));
    block_on(disk.discard(0, OBJECTS * OBJECT)).unwrap();
    block_on(disk.flush()).unwrap();
    assert!(matches!(write(&disk, 0, 8, OBJECT), Err(Error::NoSpace(_))), "the page has taken it");
    block_on(disk.close()).unwrap();
    block_on(volumes.delete("a")).unwrap();
}

#[test]
fn as_many_objects_are_written_over_beside_a_snapshot_as_there_is_room_for_copies_of() {
    let store = Arc::new(Memory::default());
    let (volumes, disk) = limited(&store, 12 + PAGE_BYTES / OBJECT);
    for object in 0..8 {
        write(&disk, object, 1, OBJECT).unwrap();
    }
    block_on(volumes.snapshot("a", "s")).unwrap();
    let refused =
        (0..8).find(|object| write(&disk, *object, 2, 100).is_err()).expect("there is no room for all");
    // The root of the snapshot needs a little space.
    assert_eq!(refused, 3);
    assert!(used_bytes(&store) <= disk.settings().quota_bytes_max.unwrap());
    block_on(disk.flush()).unwrap();
    for object in 0..8 {
        assert_eq!(byte(&disk, object), if object < refused { 2 } else { 1 });
    }
    block_on(disk.close()).unwrap();
    assert_eq!(byte(&opened(&volumes), 0), 2);
}

/// The possible contents of each cell of a disk.
struct Model(Vec<Vec<u64>>);

impl Model {
    fn change(&mut self, (first, count): (u64, u64), tag: u64, is_done: bool) {
        for cell in &mut self.0[first as usize..(first + count) as usize] {
            if is_done {
                cell.clear();
            }
            cell.push(tag);
        }
    }

    /// Reads the disk. If it was reopened, its content is settled from then on. Otherwise, a crash
    /// can still undo the effects of a partly refused write.
    fn check(&mut self, disk: &Volume, is_anew: bool, what: &str) {
        let all = block_on(disk.read(0, CELLS * CELL)).unwrap().to_vec();
        for (at, (cell, bytes)) in self.0.iter_mut().zip(all.chunks(CELL as usize)).enumerate() {
            let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, tag.to_le_bytes().repeat(CELL as usize / 8), "{what}: cell {at} is torn");
            assert!(cell.contains(&tag), "{what}: cell {at} has {tag}, and not one of {cell:?}");
            if is_anew {
                *cell = vec![tag];
            }
        }
    }
}

#[test]
fn only_writes_and_snapshots_are_refused_whatever_comes_before_and_after() {
    test_kit::each_seed(200, |seed, _| {
        let mut rng = Rng::new(seed);
        let store = Arc::new(Memory::default());
        let records_at_once = rng.below(2) == 0;
        let objects = rng.within(4, 40);
        let (mut volumes, mut disk) = limited(&store, objects);
        let bytes_max = disk.settings().quota_bytes_max.unwrap();
        if records_at_once {
            block_on(disk.close()).unwrap();
            volumes = volumes_of(&store, true);
            disk = opened(&volumes);
        }
        let mut model = Model(vec![vec![0]; CELLS as usize]);
        let mut snapshots: Vec<String> = Vec::new();
        let mut refused = 0;
        for step in 1..200_u64 {
            let object = rng.below(OBJECTS) * (OBJECT / CELL);
            let range = match rng.below(4) {
                0 => (object, OBJECT / CELL),
                1 => (object, rng.within(1, 20).min(CELLS - object)),
                _ => (object + rng.below(6), rng.within(1, 2)),
            };
            let (offset, length) = (range.0 * CELL, range.1 * CELL);
            let is_refused = |answer: Result<()>| match answer {
                Ok(()) => false,
                Err(Error::NoSpace(_)) => true,
                Err(error) => panic!("step {step}: {error}"),
            };
            match rng.below(20) {
                0..11 => {
                    let bytes = step.to_le_bytes().repeat((length / 8) as usize);
                    let durability = if rng.below(5) == 0 { Durability::Stored } else { Durability::Cached };
                    let written = block_on(disk.write(offset, bytes.into(), durability)).map(drop);
                    let is_refused = is_refused(written);
                    refused += u32::from(is_refused);
                    model.change(range, step, !is_refused);
                }
                11 => {
                    block_on(disk.discard(offset, length)).unwrap();
                    // Until then, a crash might bring it back.
                    block_on(disk.flush()).unwrap();
                    model.change(range, 0, false);
                }
                12 => {
                    let zeroed = block_on(disk.write_zeroes(offset, length, true, false));
                    model.change(range, 0, !is_refused(zeroed));
                }
                13..15 => block_on(disk.flush()).unwrap(),
                15 => block_on(disk.merge()).unwrap(),
                16 => {
                    let name = format!("s{step}");
                    if !is_refused(block_on(volumes.snapshot("a", &name))) {
                        snapshots.push(name);
                    }
                }
                17 if !snapshots.is_empty() => {
                    let name = snapshots.swap_remove(rng.index(snapshots.len()));
                    block_on(volumes.delete_snapshot("a", &name)).unwrap();
                }
                18 => {
                    block_on(disk.close()).unwrap();
                    disk = opened(&volumes);
                    model.check(&disk, true, &format!("step {step}, opened anew"));
                }
                19 if records_at_once => {
                    drop((disk, volumes));
                    volumes = volumes_of(&store, true);
                    disk = opened(&volumes);
                    model.check(&disk, true, &format!("step {step}, after a kill"));
                }
                _ => model.check(&disk, false, &format!("step {step}")),
            }
            // Pending copies, the pages of a record, and heads.
            let most = bytes_max + OBJECTS * OBJECT + 2 * PAGE_BYTES + (16 << 10);
            assert!(used_bytes(&store) <= most, "step {step}: {} of {bytes_max}", used_bytes(&store));
        }
        assert!(refused > 0 || objects > 20, "nothing was refused");
        block_on(disk.close()).unwrap();
        model.check(&opened(&volumes), true, "at the end");
    });
}
