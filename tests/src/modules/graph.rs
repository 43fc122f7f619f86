//! The graph of uses among siblings, and the cycles through chapters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::source::Crate;

/// Siblings that use each other, directly or indirectly. At least one of them is a chapter.
#[derive(Debug)]
pub struct Circle {
    /// The path of their parent; empty at the top level.
    pub parent: Vec<String>,
    /// Each use within the cycle: the two names, and one place where the first name uses the
    /// second.
    pub uses: Vec<(String, String, String)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = if self.parent.is_empty() { "the crate".into() } else { self.parent.join("::") };
        write!(out, "a circle among the modules of {parent}:")?;
        for (from, to, place) in &self.uses {
            write!(out, "\n    {from} uses {to}: {place}")?;
        }
        Ok(())
    }
}

type Siblings = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the cycles at every level of the crate that contains a chapter.
#[must_use]
pub fn circles(all: &Crate) -> Vec<Circle> {
    let mut levels: BTreeMap<Vec<String>, Siblings> = BTreeMap::new();
    for (from, module) in &all.modules {
        for used in &module.uses {
            let Some(to) = all.module_of(from, &used.segments) else { continue };
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // A module and its ancestor or descendant are not siblings.
            if shared == from.len() || shared == to.len() {
                continue;
            }
            let place = format!("{}:{} ({})", module.file.display(), used.line, used.segments.join("::"));
            let level = levels.entry(from[..shared].to_vec()).or_default();
            level.entry(from[shared].clone()).or_default().entry(to[shared].clone()).or_insert(place);
        }
    }
    let chapters = all.chapters();
    levels.into_iter().flat_map(|(parent, uses)| circles_of(&parent, &uses, &chapters)).collect()
}

fn circles_of(parent: &[String], uses: &Siblings, chapters: &BTreeSet<Vec<String>>) -> Vec<Circle> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|from| (from, reachable(from, uses))).collect();
    let mut seen: BTreeSet<&String> = BTreeSet::new();
    let mut found = Vec::new();
    for (from, to) in &reach {
        if !to.contains(*from) || seen.contains(*from) {
            continue;
        }
        let members: BTreeSet<&String> = to
            .iter()
            .copied()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(*from)))
            .collect();
        seen.extend(members.iter().copied());
        if !members.iter().any(|member| chapters.contains(&[parent, &[(*member).clone()]].concat())) {
            continue;
        }
        let within = members.iter().flat_map(|member| {
            uses[*member]
                .iter()
                .filter(|(to, _)| members.contains(to))
                .map(|(to, place)| ((*member).clone(), to.clone(), place.clone()))
        });
        found.push(Circle { parent: parent.to_vec(), uses: within.collect() });
    }
    found
}

fn reachable<'a>(from: &'a String, uses: &'a Siblings) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        for to in uses.get(next).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}
