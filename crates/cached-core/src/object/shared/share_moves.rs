//! Moving what a namespace has in memory to the queues of a share that it has just got.

use super::Shared;
use crate::object::memory::queue::bucket_hash;

/// Moves the clean buckets of a namespace that has got a share of its own to its queues. Those of objects in
/// which a thread is at work that very moment, and those that an evicting thread has taken out, stay where they are
/// until they leave by themselves.
pub(crate) fn move_buckets(shared: &Shared, namespace: u16) {
    let share = shared.queues.share_of(namespace);
    for bucket in shared.pool.numbers() {
        let meta = shared.pool.meta(bucket);
        if !shared.queues.is_elsewhere(meta, share) {
            continue;
        }
        let Some((node, at)) = meta.owner() else { continue };
        if shared.index.namespace_of(node) != namespace {
            continue;
        }
        let owner = shared.index.node(node);
        let env = shared.env(node, owner.hash());
        let moved = owner.serial.try_run(|object| {
            if object.has_clean(at, bucket) && env.namespace == namespace {
                shared.queues.move_to(&shared.pool, bucket, bucket_hash(env.hash, at), share);
            }
        });
        if moved.is_ok() {
            shared.section_ended();
        }
    }
}
