//! `me`: the attributes of an item.

use super::Executor;
use cached_proto::meta::{Debug, DebugItem, KeyBuffer};

/// `me`. It is not a use of the item.
pub(super) fn meta(executor: &mut Executor<'_>, command: &Debug<'_>) {
    let mut buffer = KeyBuffer::new();
    let key = command.key.bytes(&mut buffer);
    let kv = executor.kv();
    let out = &mut executor.out.bytes;
    let result = kv.peek(key, kv.hash(key), |item| {
        let size = item.bytes() as usize;
        command.encode_hit(
            out,
            &DebugItem {
                key: item.key(),
                key_is_binary: item.key_binary(),
                ttl: item.expiry().remaining_secs(item.now()),
                last_access: item.now().saturating_sub(item.last_access()),
                cas: item.cas(),
                fetched: item.fetched(),
                class: executor.shared.size_classes.class_of_item(
                    item.key().len(),
                    item.value_bytes(),
                    item.client_flags(),
                    executor.shared.settings.cas,
                ),
                size,
            },
        );
    });
    if result.is_err() {
        command.encode_miss(&mut executor.out.bytes);
    }
    executor.counters.meta_cmds.bump();
}
