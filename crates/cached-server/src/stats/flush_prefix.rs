//! `stats flush_prefix`: flushes of prefixes, and how far the removal of what they have ended is. Not memcached's.

use super::Sink;
use crate::shared::Shared;

pub(super) fn write(shared: &Shared, sink: &mut Sink<'_>) {
    let flushes = shared.kv.prefix_flushes();
    sink.put("flushes", flushes.flushes);
    sink.put("refused", flushes.refused);
    sink.put("pending", flushes.pending);
    sink.put("swept_share", format_args!("{:.4}", flushes.swept_share));
    sink.put("sweeps", flushes.sweeps);
    sink.put("items_removed", flushes.items_removed);
    sink.put("bytes_removed", flushes.bytes_removed);
    sink.put("marks", flushes.marks);
    sink.put("marks_max", flushes.marks_max);
}
