//! Index-linked lists over numbered objects: an object is in at most one list.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
    list: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    bytes: u64,
    len: u64,
}

/// `L` lists.
pub(super) struct Lists<const L: usize> {
    nodes: Vec<Node>,
    ends: [Ends; L],
    sizes: Vec<u64>,
}

impl<const L: usize> Lists<L> {
    pub(super) fn new(sizes: Vec<u64>) -> Self {
        Lists {
            nodes: vec![Node { older: NONE, newer: NONE, list: u8::MAX }; sizes.len()],
            ends: [Ends { oldest: NONE, newest: NONE, bytes: 0, len: 0 }; L],
            sizes,
        }
    }

    /// Returns the list that contains an object.
    pub(super) fn list_of(&self, object: u32) -> Option<usize> {
        let list = self.nodes[object as usize].list;
        (list != u8::MAX).then_some(usize::from(list))
    }

    pub(super) fn size(&self, object: u32) -> u64 {
        self.sizes[object as usize]
    }

    /// Returns the total size of the objects in a list.
    pub(super) fn bytes(&self, list: usize) -> u64 {
        self.ends[list].bytes
    }

    pub(super) fn len(&self, list: usize) -> u64 {
        self.ends[list].len
    }

    pub(super) fn oldest(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].oldest).filter(|object| *object != NONE)
    }

    pub(super) fn newest(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].newest).filter(|object| *object != NONE)
    }

    /// Returns the next newer object in the same list.
    pub(super) fn newer(&self, object: u32) -> Option<u32> {
        Some(self.nodes[object as usize].newer).filter(|object| *object != NONE)
    }

    /// Moves an object to the newest end of a list.
    pub(super) fn push(&mut self, list: usize, object: u32) {
        self.remove(object);
        let ends = &mut self.ends[list];
        self.nodes[object as usize] = Node { older: ends.newest, newer: NONE, list: list as u8 };
        match ends.newest {
            NONE => ends.oldest = object,
            newest => self.nodes[newest as usize].newer = object,
        }
        ends.newest = object;
        ends.bytes += self.sizes[object as usize];
        ends.len += 1;
    }

    /// Removes the oldest object from a list.
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let object = self.oldest(list)?;
        self.remove(object);
        Some(object)
    }

    /// Removes an object from its list, if any.
    pub(super) fn remove(&mut self, object: u32) {
        let Node { older, newer, list } = self.nodes[object as usize];
        if list == u8::MAX {
            return;
        }
        let ends = &mut self.ends[usize::from(list)];
        match older {
            NONE => ends.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => ends.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
        ends.bytes -= self.sizes[object as usize];
        ends.len -= 1;
        self.nodes[object as usize].list = u8::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_move_between_lists() {
        let mut lists = Lists::<2>::new(vec![1, 2, 4]);
        (0..3).for_each(|object| lists.push(0, object));
        lists.push(1, 1);
        assert_eq!((lists.bytes(0), lists.len(0), lists.bytes(1), lists.len(1)), (5, 2, 2, 1));
        assert_eq!((lists.oldest(0), lists.newest(0), lists.newer(0)), (Some(0), Some(2), Some(2)));
        lists.push(0, 0);
        assert_eq!((lists.pop(0), lists.pop(0), lists.pop(0)), (Some(2), Some(0), None));
        assert_eq!((lists.list_of(1), lists.list_of(2)), (Some(1), None));
    }
}
