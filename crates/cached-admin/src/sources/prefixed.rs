//! The names of a component's metrics as the endpoint shows them.

use cached_metrics::{Collect, Families};

/// A component whose metrics get the program's prefix: `synapse_requests_total` becomes
/// `cached_synapse_requests_total`. The object cache's own, `cache_…`, become `cached_objects_…`, and the memory
/// backend's, `memory_…`, `cached_memory_backend_…`: the program has memory of other owners.
///
/// Names that begin with `cached_`, `memcached_` or `process_` stay as they are.
#[derive(Debug)]
pub struct Prefixed<C>(pub C);

impl<C: Collect> Collect for Prefixed<C> {
    fn collect(&self, into: &mut Families) {
        for mut family in self.0.families() {
            let name = &*family.name;
            if !["cached_", "memcached_", "process_"].iter().any(|prefix| name.starts_with(prefix)) {
                let renamed = match name.split_once('_') {
                    Some(("cache", rest)) => format!("cached_objects_{rest}"),
                    Some(("memory", rest)) => format!("cached_memory_backend_{rest}"),
                    _ => format!("cached_{name}"),
                };
                family.name = renamed.into();
            }
            into.add(family);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names(&'static [&'static str]);

    impl Collect for Names {
        fn collect(&self, into: &mut Families) {
            self.0.iter().for_each(|name| into.counter(*name, "Help.", 1));
        }
    }

    #[test]
    fn every_name_begins_with_the_program() {
        let names = [
            "cache_flushes_total",
            "memory_objects",
            "synapse_x_total",
            "cached_y",
            "memcached_up",
            "process_z",
        ];
        let families = Prefixed(Names(Box::leak(Box::new(names)))).families();
        let renamed: Vec<&str> = families.as_slice().iter().map(|family| &*family.name).collect();
        let expected = [
            "cached_objects_flushes_total",
            "cached_memory_backend_objects",
            "cached_synapse_x_total",
            "cached_y",
            "memcached_up",
            "process_z",
        ];
        assert_eq!(renamed, expected);
    }
}
