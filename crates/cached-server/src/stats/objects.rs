//! `stats objects`: the object cache, its store and its door, where one is configured. Names are those that
//! the parts give their figures, the same in every output.

use super::Sink;
use crate::objects::Figures;

pub(super) fn write(figures: &Figures, sink: &mut Sink<'_>) {
    for pair in figures() {
        sink.put(&pair.name, pair.value);
    }
}
