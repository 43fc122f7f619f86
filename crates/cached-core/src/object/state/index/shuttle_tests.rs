use blocker::{Name, Namespace, WriteMode};

use super::*;
use crate::object::control::write_phases::WritePhases;
use crate::sync::Arc;

fn id(n: u32) -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new(format!("object {n}")).unwrap())
}

/// Returns a hash that puts all objects in the same chain.
fn hash(n: u32) -> u64 {
    u64::from(n) << 32
}

/// A section that has found an object by its name has this object and no other until it ends, while other
/// threads evict objects for new ones and look for both.
#[test]
fn a_section_keeps_its_object() {
    shuttle::check_random(
        || {
            let table = NamespaceTable::new(WritePhases::new(WriteMode::Through, WriteMode::Through));
            let index = Arc::new(Index::new(2, &table).unwrap());
            let own = Arc::clone(&index);
            let adding = shuttle::thread::spawn(move || {
                let clear = |_: u32, _: u64, object: &mut Object| {
                    *object = Object::default();
                    true
                };
                for n in [1, 2, 3, 1, 4, 2] {
                    match own.enter(hash(n), &id(n), 1, clear) {
                        Entered::Found(in_use) => own.unuse(in_use),
                        Entered::Placed { in_use, .. } => {
                            let _ = in_use.node.serial.try_run(|object| object.head.size = u64::from(n));
                            own.unuse(in_use);
                        }
                        Entered::Full { leaving } => {
                            leaving.into_iter().for_each(|at| drop(own.finalize(at, clear)));
                        }
                    }
                }
            });
            let looking = (1..=2u32).map(|n| {
                let own = Arc::clone(&index);
                shuttle::thread::spawn(move || {
                    for _ in 0..4 {
                        if let Some(mut found) = own.enter_section(hash(n))
                            && found.matches(&id(n))
                        {
                            let size = found.section.value().head.size;
                            assert!(size == 0 || size == u64::from(n), "{size} of object {n}");
                            shuttle::thread::yield_now();
                            assert!(found.matches(&id(n)), "object {n} is gone");
                            assert_eq!(found.section.value().head.size, size);
                        }
                    }
                })
            });
            let threads: Vec<_> = looking.chain([adding]).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            index.validate().unwrap();
        },
        2_000,
    );
}
