//! Interned names: a request for an object that was named before allocates nothing, and a name that is kept
//! does not keep a receive buffer alive.
//!
//! A direct-mapped table: a new name replaces the one in its place.

use blocker::{Error, Name, Namespace};
use bytes::Bytes;

/// The number of names that are kept.
const KEPT_COUNT: usize = 256;

/// The names that a connection has seen lately; at most about 64 KiB.
#[derive(Debug)]
pub struct Names {
    kept: Vec<Bytes>,
    namespace: Bytes,
}

impl Default for Names {
    fn default() -> Self {
        Self { kept: vec![Bytes::new(); KEPT_COUNT], namespace: Bytes::new() }
    }
}

impl Names {
    /// Returns the object's name with these bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none, or more than 255.
    pub fn name(&mut self, bytes: &[u8]) -> Result<Name, Error> {
        let kept = &mut self.kept[place(bytes)];
        if kept != bytes {
            *kept = Bytes::copy_from_slice(bytes);
        }
        Name::new(kept.clone())
    }

    /// Returns the namespace with these bytes.
    ///
    /// # Errors
    /// As [`Self::name`].
    pub fn namespace(&mut self, bytes: &[u8]) -> Result<Namespace, Error> {
        if self.namespace != bytes {
            let kept = &mut self.kept[place(bytes)];
            if kept != bytes {
                *kept = Bytes::copy_from_slice(bytes);
            }
            self.namespace = kept.clone();
        }
        Namespace::new(self.namespace.clone())
    }
}

/// Returns the place of a name. The hash does not resist an attacker: the worst result is an allocation.
fn place(bytes: &[u8]) -> usize {
    let mut mixed = bytes.len() as u64;
    let mut mix = |word: u64| mixed = (mixed.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (words, rest) = bytes.as_chunks();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    mix(rest.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    (mixed >> 56) as usize
}

const _: () = assert!(KEPT_COUNT == 1 << 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_seen_before_is_the_same_memory() {
        let mut names = Names::default();
        let first = names.name(b"disk/0000001").unwrap();
        let again = names.name(b"disk/0000001").unwrap();
        assert_eq!(first.as_bytes().as_ptr(), again.as_bytes().as_ptr());
        let space = names.namespace(b"vm").unwrap();
        assert_eq!(space.as_bytes().as_ptr(), names.namespace(b"vm").unwrap().as_bytes().as_ptr());
        for n in 0..1000 {
            let text = format!("name {n}");
            assert_eq!(names.name(text.as_bytes()).unwrap().as_bytes(), text.as_bytes());
        }
        assert!(names.name(b"").is_err());
        assert!(names.name(&[1; 256]).is_err());
    }
}
