//! The numbers by which two maps, or the items of a node under two maps, are known to be the same: the
//! digest of a map, and the mark of a memory file.

use crate::map::Map;
use crate::node::{Node, NodeIndex, Wardship};

impl Map {
    /// Returns a number that two maps share only if they are equal, apart from rare coincidences: for
    /// the detection of maps that differ, not against forgery.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// What a map file cannot have changes the digest only if it is there: so programs that do not
    /// know it have the same digest of a map from a file.
    pub(crate) fn computed_digest(&self) -> u64 {
        let mut digest = Digest::new(&self.ring);
        digest.add(&self.version.to_le_bytes());
        for Node { name, ring, address, weight, term, lease_ms, warden, host, process } in &self.nodes {
            [name, ring, address].iter().for_each(|text| digest.add_text(text));
            digest.add(&weight.to_le_bytes());
            for (letter, number) in [(b't', *term), (b'l', u64::from(*lease_ms)), (b'e', *process as u64)] {
                if number != 0 {
                    digest.add_other(letter, number);
                }
            }
            if let Some(Wardship { warden, since }) = warden {
                digest.add_other(b'w', *since);
                digest.add_text(warden);
            }
            if !host.is_empty() {
                digest.add(b"h");
                digest.add_text(host);
            }
        }
        self.owners.iter().for_each(|owner| digest.add(&owner.0.to_le_bytes()));
        for (letter, number) in [(b'p', u64::from(self.is_paused)), (b's', self.struck)] {
            if number != 0 {
                digest.add_other(letter, number);
            }
        }
        let moves = self.moves.iter().map(|one| (b'm', one.id, one.to, &one.slots));
        let wishes = self.wishes.iter().map(|wish| (b'w', 0, wish.to, &wish.slots));
        for (letter, number, to, slots) in moves.chain(wishes) {
            digest.add_other(letter, number);
            digest.add(&to.0.to_le_bytes());
            slots.runs().flat_map(|(first, last)| [first, last]).for_each(|slot| {
                digest.add(&slot.number().to_le_bytes());
            });
        }
        digest.finish()
    }

    /// Returns the mark for a memory file whose items are all of slots that this node owns. Two
    /// marks are equal if the name of the ring, the node's term, the name of the node and its slots
    /// are equal; without a term, also the version: under another version, the slots may have been
    /// another node's. No mark is 0 or 1.
    #[must_use]
    pub fn mark(&self, node: NodeIndex) -> u64 {
        let mut digest = Digest::new(&self.ring);
        let Node { name, term, .. } = self.node(node);
        match term {
            0 => digest.add(&self.version.to_le_bytes()),
            _ => digest.add_other(b't', *term),
        }
        digest.add_text(name);
        for run in self.runs().filter(|run| run.owner == node) {
            digest.add(&run.first.number().to_le_bytes());
            digest.add(&run.last.number().to_le_bytes());
        }
        digest.finish().max(2)
    }
}

/// FNV-1a of 64 bits, and a final mix of the bits (MurmurHash3's).
struct Digest(u64);

impl Digest {
    fn new(ring: &str) -> Digest {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        digest.add_text(ring);
        digest
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Adds a number that is not always there, with a letter for its meaning.
    fn add_other(&mut self, letter: u8, number: u64) {
        self.add(&[letter]);
        self.add(&number.to_le_bytes());
    }

    /// Adds a text and its end, which no text contains.
    fn add_text(&mut self, text: &str) {
        self.add(text.as_bytes());
        self.add(&[0]);
    }

    fn finish(self) -> u64 {
        let mut bits = self.0;
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        bits ^ (bits >> 33)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Owners;
    use crate::map::tests::{map, node};
    use crate::slots::{Slot, SlotSet};

    #[test]
    fn a_digest_depends_on_everything_and_a_mark_on_version_and_own_slots() {
        let one = map(7, &["a", "b"]);
        assert_eq!(one.digest(), map(7, &["a", "b"]).digest());
        let (a, b) = (NodeIndex(0), NodeIndex(1));
        let mut owners = one.owners.clone();
        owners[9] = b;
        let of = |version, nodes: &[Node], owners: &Owners| {
            Map::new(&one.ring, version, nodes.to_vec(), owners.clone()).unwrap()
        };
        let other_owner = of(7, &one.nodes, &owners);
        let mut nodes = one.nodes.clone();
        nodes[1].address = "10.0.0.2:1".into();
        let other_address = of(7, &nodes, &one.owners);
        for other in [&map(8, &["a", "b"]), &other_owner, &other_address, &map(7, &["a", "c"])] {
            assert_ne!(one.digest(), other.digest());
        }
        let next = one.begin_move("b", "a", SlotSet::from_iter(Slot::all().next_back())).unwrap();
        for other in
            [&one.set_paused(true).unwrap(), &one.fail("b", &|_| true).unwrap(), &next.abort_move(8).unwrap()]
        {
            assert_ne!(next.digest(), other.digest());
        }
        let leased = one.set_own(&Node { lease_ms: 9, ..node("a", 1) }).unwrap();
        let warded = one.set_warden("a", Some("b")).unwrap();
        let hosted = one.set_own(&Node { host: "h".into(), ..one.nodes[0].clone() }).unwrap();
        let ended = one.sign_off("a").unwrap();
        let same = one.set_paused(false).unwrap();
        let digests = [&leased, &warded, &hosted, &ended, &same].map(Map::digest);
        assert_eq!(std::collections::HashSet::from(digests).len(), digests.len());
        let since = |map: &Map| map.nodes[0].warden.as_ref().map(|of| of.since);
        assert_eq!((since(&warded), since(&one)), (Some(8), None));
        assert_eq!(one.mark(a), map(7, &["a", "z"]).mark(a));
        assert_ne!(one.mark(a), map(8, &["a", "b"]).mark(a));
        assert_eq!(one.mark(b), other_address.mark(b));
        assert!(one.mark(a) != other_owner.mark(a) && one.mark(a) != one.mark(b) && one.mark(a) > 1);
    }
}
