use super::*;
use crate::object::control::write_phases::WritePhases;
use blocker::{Name, Namespace};

fn id(n: u32) -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new(format!("object {n}")).unwrap())
}
fn hash(n: u32) -> u64 {
    u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
fn table() -> NamespaceTable {
    NamespaceTable::new(WritePhases::new(blocker::WriteMode::Through, blocker::WriteMode::Through))
}
fn goes(_: u32, _: u64, _: &mut Object) -> bool {
    true
}

#[test]
fn entering_a_full_index_evicts_the_object_not_asked_for() {
    let index = Index::new(3, &table()).unwrap();
    for n in 0..3 {
        let Entered::Placed { in_use, evicted: None } = index.enter(hash(n), &id(n), 1, goes) else {
            panic!("there is room")
        };
        index.unuse(in_use);
    }
    let held = index.get(hash(0), &id(0)).unwrap();
    let Entered::Placed { in_use, evicted } = index.enter(hash(3), &id(3), 1, goes) else {
        panic!("one goes")
    };
    assert_eq!(evicted, Some(id(1)));
    index.unuse(in_use);
    assert!(index.get(hash(1), &id(1)).is_none());
    assert_eq!(index.id(held), id(0));
    index.validate().unwrap();
    assert_eq!(index.count(), 3);
}

#[test]
fn a_dirty_object_leaves_later_or_stays_if_it_is_asked_for() {
    let index = Index::new(2, &table()).unwrap();
    for n in 0..2 {
        let Entered::Placed { in_use, .. } = index.enter(hash(n), &id(n), 1, goes) else { panic!("room") };
        index.unuse(in_use);
    }
    let Entered::Full { leaving } = index.enter(hash(2), &id(2), 1, |_, _, _| false) else {
        panic!("none goes")
    };
    assert_eq!(leaving, [0, 1]);
    assert!(index.is_leaving(0));
    let in_use = index.get(hash(0), &id(0)).unwrap();
    assert!(!index.is_leaving(0));
    index.unuse(in_use);
    assert_eq!(index.finalize(0, goes), None, "it stays");
    assert_eq!(index.finalize(1, goes), Some(id(1)));
    assert!(matches!(index.enter(hash(2), &id(2), 1, goes), Entered::Placed { evicted: None, .. }));
    index.validate().unwrap();
}
