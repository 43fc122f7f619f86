//! A writer's knowledge: each change that it has requested, the acknowledged durability, and
//! therefore the possible contents after a crash.
//!
//! The reference is the contract's in-memory store: every change is made to it as well, and the
//! server must have the same content. A writer's changes are numbered; a *cut* is a number such
//! that all of the writer's changes in the journaled namespace up to it are present, and none after
//! it.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Error, Memory, Name, Namespace, ObjectId, ReadRequest, WriteFullRequest};

/// The maximum size of the load's objects, in bytes.
pub const OBJECT_BYTES: u64 = 64 << 10;

/// A hash that is equal in every process for equal content.
type Hashing = BuildHasherDefault<DefaultHasher>;

/// An object's content; `None` if the object does not exist.
pub type Content = Option<Vec<u8>>;

/// The problems found after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Objects that lack a change acknowledged as durable.
    pub lost: u64,
    /// Objects with content that they never had.
    pub torn: u64,
    /// Writers of whom a later change is present without an earlier one.
    pub disordered: u64,
    /// Versions with two different contents.
    pub reused_versions: u64,
}

impl Faults {
    /// Adds the faults of another check.
    pub fn add(&mut self, other: Faults) {
        self.lost += other.lost;
        self.torn += other.torn;
        self.disordered += other.disordered;
        self.reused_versions += other.reused_versions;
    }
}

/// A change of an object: its number among the writer's changes, and the resulting content.
struct Step {
    number: u64,
    hash: u64,
}

/// One object's possible contents since the last check.
struct History {
    id: ObjectId,
    /// The possible contents. The last check has found the first of them.
    steps: Vec<Step>,
    /// The number of the last change that is known to be durable.
    durable: u64,
    /// Whether the unacknowledged change may be present in part.
    may_be_torn: bool,
}

/// One writer's objects and their histories.
pub struct Model {
    reference: Memory,
    histories: Vec<History>,
    hasher: Hashing,
    /// The number of the last change that was requested.
    number: u64,
    /// The versions seen, with their contents.
    versions: HashMap<(usize, u64), u64>,
    journaled: Namespace,
}

impl Model {
    /// Returns the model of the writer `writer`, with `count` objects in each namespace, none of
    /// which exists yet.
    pub fn new(writer: usize, count: usize, journaled: &Namespace, namespaces: &[Namespace]) -> Self {
        let hasher = Hashing::default();
        let nothing = hash(&hasher, &None);
        let id = |namespace: &Namespace, index| {
            ObjectId::new(namespace.clone(), Name::new(format!("w{writer}.{index}")).expect("a name"))
        };
        let ids = namespaces.iter().flat_map(|namespace| (0..count).map(move |index| id(namespace, index)));
        let history = |id| History {
            id,
            steps: vec![Step { number: 0, hash: nothing }],
            durable: 0,
            may_be_torn: false,
        };
        Self {
            reference: Memory::default(),
            histories: ids.map(history).collect(),
            hasher,
            number: 0,
            versions: HashMap::new(),
            journaled: journaled.clone(),
        }
    }

    /// Returns the reference store.
    pub fn reference(&self) -> &Memory {
        &self.reference
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.histories.len()
    }

    /// Returns whether the writer has no objects.
    pub fn is_empty(&self) -> bool {
        self.histories.is_empty()
    }

    /// Returns an object's name.
    pub fn object(&self, at: usize) -> &ObjectId {
        &self.histories[at].id
    }

    /// Returns whether an object is in the journaled namespace.
    pub fn is_journaled(&self, at: usize) -> bool {
        self.histories[at].id.namespace == self.journaled
    }

    /// Returns the reference's content.
    pub fn content(&self, at: usize) -> Content {
        read(&self.reference, &self.histories[at].id).expect("the reference has no faults").0
    }

    /// Records the next requested change, which the reference has already made. Returns the
    /// change's number.
    pub fn requested(&mut self, at: usize, may_be_torn: bool) -> u64 {
        self.number += 1;
        let hash = hash(&self.hasher, &self.content(at));
        let history = &mut self.histories[at];
        history.steps.push(Step { number: self.number, hash });
        history.may_be_torn = may_be_torn;
        self.number
    }

    /// Records that the last requested change of `at` has been acknowledged.
    pub fn answered(&mut self, at: usize) {
        self.histories[at].may_be_torn = false;
    }

    /// Records that the last change of an object is durable. In the journaled namespace, this
    /// includes all earlier changes.
    pub fn durable(&mut self, at: usize) {
        self.histories[at].durable = self.histories[at].steps.last().map_or(0, |step| step.number);
        if self.is_journaled(at) {
            self.all_durable(|id, journaled| id.namespace == *journaled);
        }
    }

    /// Records that all changes so far of the objects that `covers` selects are durable.
    pub fn all_durable(&mut self, covers: impl Fn(&ObjectId, &Namespace) -> bool) {
        for history in &mut self.histories {
            if covers(&history.id, &self.journaled) {
                history.durable = history.steps.last().map_or(0, |step| step.number);
            }
        }
    }

    /// Compares a server's content with the required content, and uses it as the base of the next
    /// check. A line for each fault goes to `report`.
    ///
    /// # Errors
    /// Returns an error if a request to the server fails.
    pub fn check(&mut self, server: &dyn Blocker, report: &mut dyn FnMut(String)) -> Result<Faults, Error> {
        let mut faults = Faults::default();
        let mut found = Vec::new();
        for (at, history) in self.histories.iter().enumerate() {
            let (content, version) = read(server, &history.id)?;
            let hash = hash(&self.hasher, &content);
            if let Some(version) = version {
                let known = *self.versions.entry((at, version)).or_insert(hash);
                if known != hash {
                    faults.reused_versions += 1;
                    report(format!("{}: version {version} stands for two contents", history.id));
                }
            }
            found.push((content, hash));
        }
        for (history, (content, hash)) in self.histories.iter().zip(&found) {
            let is_last_in_part = history.may_be_torn && history.steps.len() > 1;
            let shown = content.as_ref().map_or("missing".into(), |bytes| format!("{} bytes", bytes.len()));
            let mut possible = history.steps.iter().rev().filter(|step| step.hash == *hash);
            match possible.next() {
                None if is_last_in_part => {}
                None => {
                    faults.torn += 1;
                    report(format!("{} ({shown}) has a content that it never had", history.id));
                }
                // If a later step has the same content, the later one counts, because it must be
                // present.
                Some(step) if step.number < history.durable => {
                    faults.lost += 1;
                    report(format!(
                        "{} ({shown}) is as of change {}, {} was acknowledged as durable",
                        history.id, step.number, history.durable
                    ));
                }
                Some(_) => {}
            }
        }
        if faults.lost + faults.torn == 0 && !self.has_cut(&found) {
            faults.disordered += 1;
            let writer = &self.histories[0].id;
            report(format!("the writer of {writer}: a later change is there, an earlier one is not"));
        }
        self.rebase(found);
        Ok(faults)
    }

    /// Returns whether the found content corresponds to a prefix of the writer's changes.
    fn has_cut(&self, found: &[(Content, u64)]) -> bool {
        let is_journaled = |history: &History| history.id.namespace == self.journaled;
        let journaled = || self.histories.iter().zip(found).filter(|(history, _)| is_journaled(history));
        let least = journaled().map(|(history, _)| history.durable).max().unwrap_or(0);
        (least..=self.number).any(|cut| {
            journaled().filter(|(history, _)| !history.may_be_torn).all(|(history, (_, hash))| {
                let state = history.steps.iter().rev().find(|step| step.number <= cut);
                state.is_some_and(|step| step.hash == *hash)
            })
        })
    }

    fn rebase(&mut self, found: Vec<(Content, u64)>) {
        self.number = 0;
        self.reference = Memory::default();
        for (history, (content, hash)) in self.histories.iter_mut().zip(found) {
            history.steps = vec![Step { number: 0, hash }];
            (history.durable, history.may_be_torn) = (0, false);
            if let Some(content) = content {
                let request = WriteFullRequest::new(history.id.clone(), content);
                block_on(self.reference.write_full(request)).expect("the reference has no faults");
            }
        }
    }
}

fn hash(hasher: &Hashing, content: &Content) -> u64 {
    hasher.hash_one(content)
}

/// Returns an object's content and version.
fn read(store: &dyn Blocker, id: &ObjectId) -> Result<(Content, Option<u64>), Error> {
    match block_on(store.read(ReadRequest::new(id.clone(), 0, OBJECT_BYTES))) {
        Ok(reply) => Ok((Some(reply.data.to_vec()), Some(reply.version.0))),
        Err(Error::Missing) => Ok((None, None)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::WriteRequest;

    fn namespaces() -> (Namespace, Namespace) {
        (Namespace::new("log").unwrap(), Namespace::new("plain").unwrap())
    }

    fn model() -> Model {
        let (log, plain) = namespaces();
        Model::new(0, 2, &log, &[log.clone(), plain])
    }

    fn write(model: &mut Model, at: usize, text: &str) {
        let request = WriteRequest::new(model.object(at).clone(), 0, text.as_bytes().to_vec());
        block_on(model.reference().write(request)).unwrap();
        model.requested(at, false);
    }

    /// Returns a server with these contents of the first objects.
    fn server(model: &Model, contents: &[Option<&str>]) -> Memory {
        let server = Memory::default();
        for (at, content) in contents.iter().enumerate() {
            if let Some(content) = content {
                let request = WriteFullRequest::new(model.object(at).clone(), content.as_bytes().to_vec());
                block_on(server.write_full(request)).unwrap();
            }
        }
        server
    }

    fn faults(model: &mut Model, contents: &[Option<&str>]) -> Faults {
        let server = server(model, contents);
        model.check(&server, &mut |_| {}).unwrap()
    }

    #[test]
    fn every_prefix_from_the_durable_change_on_is_right_and_nothing_else() {
        for (contents, lost, torn, disordered) in [
            ([Some("a3"), Some("b2")], 0, 0, 0),
            ([Some("a1"), Some("b2")], 0, 0, 0),
            ([Some("a1"), None], 0, 0, 0),
            // a3 is present, but the earlier b2 is missing.
            ([Some("a3"), None], 0, 0, 1),
            ([None, None], 1, 0, 0),
            ([Some("a0"), None], 0, 1, 0),
        ] {
            let mut model = model();
            write(&mut model, 0, "a1");
            model.durable(0);
            write(&mut model, 1, "b2");
            write(&mut model, 0, "a3");
            let found = faults(&mut model, &contents);
            assert_eq!((found.lost, found.torn, found.disordered), (lost, torn, disordered), "{contents:?}");
        }
    }

    #[test]
    fn a_durable_change_makes_those_before_it_in_the_journaled_namespace_durable() {
        let mut model = model();
        write(&mut model, 0, "a1");
        write(&mut model, 2, "p2");
        write(&mut model, 1, "b3");
        model.durable(1);
        assert_eq!(faults(&mut model, &[None, Some("b3"), None]).lost, 1);
    }

    #[test]
    fn what_was_found_is_the_base_of_the_next_check() {
        let mut model = model();
        write(&mut model, 0, "a1");
        write(&mut model, 0, "a2");
        assert_eq!(faults(&mut model, &[Some("a1")]), Faults::default());
        assert_eq!(faults(&mut model, &[Some("a2")]).torn, 1);
    }
}
