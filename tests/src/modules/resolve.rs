//! Finds the module in which a path's item is defined.

use super::source::Crate;

/// The number of re-exports that are followed before a path counts as unresolvable.
const HOPS_MAX: usize = 16;

impl Crate {
    /// Returns the path of the module that defines the item named by `segments` in the module
    /// `from`. Returns `None` for other crates' items, for names of the prelude, and for `from`
    /// itself.
    pub(super) fn module_of(&self, from: &[String], segments: &[String]) -> Option<Vec<String>> {
        let found = self.resolve(from, segments, HOPS_MAX)?;
        (found != from).then_some(found)
    }

    fn resolve(&self, from: &[String], segments: &[String], hops: usize) -> Option<Vec<String>> {
        let (first, mut rest) = segments.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            name => {
                let child = below(from, name);
                if self.modules.contains_key(&child) {
                    child
                } else {
                    return self.follow(from, name, rest, hops);
                }
            }
        };
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop()?;
            } else if self.modules.contains_key(&below(&at, name)) {
                at = below(&at, name);
            } else {
                // The item is defined here, or imported here by a `use`.
                return self.follow(&at, name, after, hops).or(Some(at));
            }
            rest = after;
        }
        Some(at)
    }

    /// Follows a name that a `use` has imported into the module `at`.
    fn follow(&self, at: &[String], name: &str, rest: &[String], hops: usize) -> Option<Vec<String>> {
        let target = self.modules.get(at)?.aliases.get(name)?;
        if hops == 0 || target.first().is_some_and(|first| first == name) && target.len() == 1 {
            return None;
        }
        let path: Vec<String> = target.iter().chain(rest).cloned().collect();
        self.resolve(at, &path, hops - 1)
    }
}

fn below(module: &[String], name: &str) -> Vec<String> {
    module.iter().cloned().chain([name.to_owned()]).collect()
}
