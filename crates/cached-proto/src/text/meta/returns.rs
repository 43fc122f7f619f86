//! The attributes in a meta reply, in the order of the request.

use std::fmt;

use crate::limits::OPAQUE_LEN_MAX;

/// A flag that requests an attribute in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReturnFlag {
    /// `O`
    Opaque = 1,
    /// `k`
    Key,
    /// `s`
    Size,
    /// `t`
    TtlLeft,
    /// `c`
    Cas,
    /// `f`
    ClientFlags,
    /// `l`
    LastAccess,
    /// `h`
    Hit,
}

/// The flags that the reply repeats, in the order of the request: half a byte each, the first in the lowest
/// bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReturnFlags(u32);

impl ReturnFlags {
    pub(super) const NONE: ReturnFlags = ReturnFlags(0);

    pub(super) fn push(&mut self, flag: ReturnFlag) {
        // No flag repeats, so the eight of them fit.
        let used = (u32::BITS - self.0.leading_zeros()).next_multiple_of(4);
        self.0 |= (flag as u32) << used;
    }

    /// Returns the flags in order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = ReturnFlag> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let flag = match rest & 15 {
                1 => ReturnFlag::Opaque,
                2 => ReturnFlag::Key,
                3 => ReturnFlag::Size,
                4 => ReturnFlag::TtlLeft,
                5 => ReturnFlag::Cas,
                6 => ReturnFlag::ClientFlags,
                7 => ReturnFlag::LastAccess,
                8 => ReturnFlag::Hit,
                _ => return None,
            };
            rest >>= 4;
            Some(flag)
        })
    }

    /// Returns whether the reply consists of its code only.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for ReturnFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// An opaque with its `O`, at most 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opaque {
    /// Above 32 if it was too long to keep.
    len: u8,
    bytes: [u8; OPAQUE_LEN_MAX + 1],
}

impl Opaque {
    pub(super) const NONE: Opaque = Opaque { len: 0, bytes: [0; OPAQUE_LEN_MAX + 1] };

    pub(super) fn set(&mut self, token: &[u8]) {
        self.len = token.len().min(u8::MAX as usize) as u8;
        if let Some(bytes) = self.bytes.get_mut(..token.len()) {
            bytes.copy_from_slice(token);
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.len as usize > self.bytes.len()
    }

    /// Returns the opaque with its `O`, or nothing.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..(self.len as usize).min(self.bytes.len())]
    }

    /// Appends a space and the opaque.
    #[inline]
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(b' ');
        out.extend_from_slice(self.as_bytes());
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::parse;

    #[test]
    fn opaques_have_a_limit() {
        let opaque = |len: usize| parse(&format!("mg k O{}", "x".repeat(len))).unwrap().opaque;
        assert!(!opaque(31).is_too_long());
        assert_eq!(opaque(31).as_bytes().len(), 32);
        assert!(opaque(32).is_too_long());
        assert!(opaque(1000).is_too_long());
    }
}
