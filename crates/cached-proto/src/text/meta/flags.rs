//! The flags of a meta command, and the attributes that its reply returns, in the order of the
//! request.
//!
//! They are parsed once into numbers and bits, without allocation. The struct does not borrow from
//! the input, so the reply to a command whose body arrives later can be written from it.

use super::MetaKey;
use crate::limits::OPAQUE_LEN_MAX;
use crate::{number, reply};
use std::fmt;

/// A flag's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flag {
    /// `b`: the key is base64.
    BinaryKey = b'b',
    /// `c`: return the CAS value.
    Cas = b'c',
    /// `f`: return the client's flags.
    ClientFlags = b'f',
    /// `h`: return whether the item was fetched before.
    Hit = b'h',
    /// `k`: return the key.
    Key = b'k',
    /// `l`: return the seconds since the last access.
    LastAccess = b'l',
    /// `O`: return this opaque.
    Opaque = b'O',
    /// `q`: suppress the usual reply.
    Quiet = b'q',
    /// `s`: return the size.
    Size = b's',
    /// `t`: return the seconds left to live.
    TtlLeft = b't',
    /// `u`: do not update the item's position in the eviction order or its last access.
    NoUpdate = b'u',
    /// `v`: return the value.
    Value = b'v',
    /// `x`: replace the value by an empty one.
    RemoveValue = b'x',
    /// `C`: compare with this CAS value.
    CompareCas = b'C',
    /// `D`: the delta.
    Delta = b'D',
    /// `E`: the CAS value to set.
    NewCas = b'E',
    /// `F`: the client's flags to store.
    SetClientFlags = b'F',
    /// `I`: mark as stale; `ms`: accept an older CAS value, marking the item stale.
    Invalidate = b'I',
    /// `J`: the initial number.
    Initial = b'J',
    /// `L`: meant for a proxy; ignored.
    Route = b'L',
    /// `M`: the mode.
    Mode = b'M',
    /// `N`: create on a miss, with this expiry.
    Vivify = b'N',
    /// `P`: meant for a proxy; ignored.
    Path = b'P',
    /// `R`: win the right to recache if the remaining seconds to live are fewer.
    Recache = b'R',
    /// `T`: the new expiry.
    Ttl = b'T',
}

/// The flags of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlags {
    /// One bit per letter, counted from `A`.
    present: u64,
    /// The flags that the reply repeats, in order.
    pub returns: ReturnFlags,
    /// The opaque, with its `O`; empty if there is none.
    pub opaque: Opaque,
    /// Whether `t` came before `T` or `N`, whichever set the item's expiry.
    ttl_left_first: u8,
    recache_after_ttl: bool,
    ttl_after_vivify: bool,
    ttl: i32,
    vivify: i32,
    recache: i32,
    client_flags: u32,
    compare_cas: u64,
    new_cas: u64,
    delta: u64,
    initial: u64,
}

const TTL_LEFT_BEFORE_TTL: u8 = 1;
const TTL_LEFT_BEFORE_VIVIFY: u8 = 2;

impl MetaFlags {
    /// No flags.
    pub const NONE: MetaFlags = MetaFlags {
        present: 0,
        returns: ReturnFlags::NONE,
        opaque: Opaque::NONE,
        ttl_left_first: 0,
        recache_after_ttl: false,
        ttl_after_vivify: false,
        ttl: 0,
        vivify: 0,
        recache: 0,
        client_flags: 0,
        compare_cas: 0,
        new_cas: 0,
        delta: 1,
        initial: 0,
    };

    /// Returns whether the flag was given.
    #[inline]
    pub fn has(&self, flag: Flag) -> bool {
        self.present & bit(flag as u8) != 0
    }

    /// Returns whether `q` was given.
    #[inline]
    pub fn quiet(&self) -> bool {
        self.has(Flag::Quiet)
    }

    /// Returns whether `v` was given.
    #[inline]
    pub fn value(&self) -> bool {
        self.has(Flag::Value)
    }

    /// Returns the value of `T`: the new expiry as the client sent it. A negative value expires the
    /// item immediately.
    #[inline]
    pub fn ttl(&self) -> Option<i32> {
        self.has(Flag::Ttl).then_some(self.ttl)
    }

    /// Returns the value of `N`: the expiry of an item created on a miss.
    #[inline]
    pub fn vivify(&self) -> Option<i32> {
        self.has(Flag::Vivify).then_some(self.vivify)
    }

    /// Returns the value of `R`: a client that finds fewer remaining seconds to live wins the right
    /// to recache.
    #[inline]
    pub fn recache(&self) -> Option<i32> {
        self.has(Flag::Recache).then_some(self.recache)
    }

    /// Returns the value of `C`: the CAS value to compare with.
    #[inline]
    pub fn compare_cas(&self) -> Option<u64> {
        self.has(Flag::CompareCas).then_some(self.compare_cas)
    }

    /// Returns the value of `E`: the CAS value that the item gets.
    #[inline]
    pub fn new_cas(&self) -> Option<u64> {
        self.has(Flag::NewCas).then_some(self.new_cas)
    }

    /// Returns the value of `F`: the client's flags to store, or 0.
    #[inline]
    pub fn client_flags(&self) -> u32 {
        self.client_flags
    }

    /// Returns the value of `D`: the delta of `ma`, or 1 by default.
    #[inline]
    pub fn delta(&self) -> u64 {
        self.delta
    }

    /// Returns the value of `J`: the number that `ma … N` creates, or 0 by default.
    #[inline]
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// Returns whether `t` came before `T`. Flags act in order, so `t` then returns the time to
    /// live before the update.
    #[inline]
    pub fn shows_ttl_before_update(&self) -> bool {
        self.ttl_left_first & TTL_LEFT_BEFORE_TTL != 0
    }

    /// Returns whether `t` came before `N`. Then a new item's time to live is returned as -1, or as
    /// set by an earlier `T`.
    #[inline]
    pub fn shows_ttl_before_vivify(&self) -> bool {
        self.ttl_left_first & TTL_LEFT_BEFORE_VIVIFY != 0
    }

    /// Returns whether `T` came after `N`. If so, a created item has the expiry of `T`; otherwise,
    /// that of `N`.
    #[inline]
    pub fn updates_after_vivify(&self) -> bool {
        self.ttl_after_vivify
    }

    /// Returns whether `R` came after `T`. If so, `R` compares with the new time to live.
    #[inline]
    pub fn recaches_after_update(&self) -> bool {
        self.recache_after_ttl
    }

    /// Records that the flag was given.
    #[inline]
    pub(super) fn mark(&mut self, letter: u8) {
        self.present |= bit(letter);
    }

    /// Adds one flag from its token and the command's key.
    #[inline]
    pub(super) fn add(&mut self, token: &[u8], key: &[u8]) -> Result<(), FlagError> {
        let (letter, argument) = (token[0], &token[1..]);
        if letter.is_ascii_digit() {
            return Err(FlagError::Stop(reply::META_INVALID_FLAG));
        }
        if self.present & bit(letter) != 0 {
            return Err(FlagError::Stop(reply::META_DUPLICATE_FLAG));
        }
        match letter {
            b'k' => self.returns.push(ReturnFlag::Key),
            b's' => self.returns.push(ReturnFlag::Size),
            b't' => self.returns.push(ReturnFlag::TtlLeft),
            b'c' => self.returns.push(ReturnFlag::Cas),
            b'f' => self.returns.push(ReturnFlag::ClientFlags),
            b'l' => self.returns.push(ReturnFlag::LastAccess),
            b'h' => self.returns.push(ReturnFlag::Hit),
            b'O' => {
                self.returns.push(ReturnFlag::Opaque);
                // The length of an opaque that is too long is kept for the check at the end.
                self.opaque.set(token);
            }
            b'v' | b'q' | b'u' | b'x' | b'I' | b'M' | b'P' | b'L' => {}
            b'b' => {
                if MetaKey::base64_len(key).is_none() {
                    return Err(FlagError::Later(Some(reply::META_BAD_KEY)));
                }
            }
            b'T' => {
                self.ttl_left_first |= if self.has(Flag::TtlLeft) { TTL_LEFT_BEFORE_TTL } else { 0 };
                self.ttl_after_vivify = self.has(Flag::Vivify);
                self.ttl = signed(argument)?;
            }
            b'N' => {
                self.ttl_left_first |= if self.has(Flag::TtlLeft) { TTL_LEFT_BEFORE_VIVIFY } else { 0 };
                self.vivify = signed(argument)?;
            }
            b'R' => {
                self.recache_after_ttl = self.has(Flag::Ttl);
                self.recache = signed(argument)?;
            }
            b'F' => match number::token_u32(argument) {
                Some(flags) if !argument.is_empty() => self.client_flags = flags,
                // memcached has no specific reply here: the reply is that of another error, or the
                // general one.
                _ => return Err(FlagError::Later(None)),
            },
            b'C' => self.compare_cas = unsigned(argument, reply::META_BAD_TOKEN)?,
            b'E' => self.new_cas = unsigned(argument, reply::META_BAD_TOKEN)?,
            b'J' => self.initial = unsigned(argument, reply::META_INVALID_INITIAL)?,
            b'D' => self.delta = unsigned(argument, reply::META_INVALID_DELTA)?,
            _ => return Err(FlagError::Stop(reply::META_INVALID_FLAG)),
        }
        Ok(())
    }
}

/// An error in one flag.
pub(super) enum FlagError {
    /// Refuse the command with this reply.
    Stop(&'static [u8]),
    /// After reading all flags, refuse the command with this reply, unless a later error replaces
    /// it.
    Later(Option<&'static [u8]>),
}

fn signed(argument: &[u8]) -> Result<i32, FlagError> {
    match number::token_i32(argument) {
        Some(value) if !argument.is_empty() => Ok(value),
        _ => Err(FlagError::Later(Some(reply::META_BAD_TOKEN))),
    }
}

fn unsigned(argument: &[u8], words: &'static [u8]) -> Result<u64, FlagError> {
    match number::token_u64(argument) {
        Some(value) if !argument.is_empty() => Ok(value),
        _ => Err(FlagError::Later(Some(words))),
    }
}

#[inline]
fn bit(letter: u8) -> u64 {
    // The line reader admits only `A` to `z` and digits, and digits are refused before this lookup.
    1 << (letter.wrapping_sub(b'A') & 63)
}

const _: () = assert!(size_of::<MetaFlags>() <= 104);

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

/// The flags that the reply repeats, in the order of the request: four bits each, the first in the
/// lowest bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReturnFlags(u32);

impl ReturnFlags {
    pub(super) const NONE: ReturnFlags = ReturnFlags(0);

    pub(super) fn push(&mut self, flag: ReturnFlag) {
        // No flag occurs twice, so the eight flags fit.
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

    /// Returns whether the reply consists only of its code.
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
    /// The length; above 32 if the opaque was too long to keep.
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
    use super::super::parse;
    use super::*;

    #[test]
    fn every_flag() {
        let flags = parse("mg k s v f h l t k c Oxyz q u x").unwrap();
        assert_eq!(
            format!("{:?}", flags.returns),
            "[Size, ClientFlags, Hit, LastAccess, TtlLeft, Key, Cas, Opaque]"
        );
        assert_eq!(flags.opaque.as_bytes(), b"Oxyz");
        assert!(flags.value() && flags.quiet() && flags.has(Flag::NoUpdate) && flags.has(Flag::RemoveValue));
        let flags =
            parse("mg Zm9v b T30 N-1 R5 F4294967295 C18446744073709551615 E7 J3 D4 MX I Pa Lb").unwrap();
        assert_eq!((flags.ttl(), flags.vivify(), flags.recache()), (Some(30), Some(-1), Some(5)));
        assert_eq!((flags.client_flags(), flags.compare_cas()), (u32::MAX, Some(u64::MAX)));
        assert_eq!((flags.new_cas(), flags.initial(), flags.delta()), (Some(7), 3, 4));
        assert!(
            flags.has(Flag::Invalidate)
                && flags.has(Flag::BinaryKey)
                && flags.has(Flag::Mode)
                && flags.returns.is_empty()
        );
        let none = parse("mg k").unwrap();
        assert_eq!(none, MetaFlags::NONE);
        assert_eq!((none.ttl(), none.compare_cas(), none.delta()), (None, None, 1));
    }

    #[test]
    fn the_order_of_time_flags_matters() {
        assert!(!parse("mg k T30 t").unwrap().shows_ttl_before_update());
        assert!(parse("mg k t T30").unwrap().shows_ttl_before_update());
        assert!(parse("mg k t N30").unwrap().shows_ttl_before_vivify());
        assert!(parse("mg k T30 R5").unwrap().recaches_after_update());
        assert!(!parse("mg k R5 T30").unwrap().recaches_after_update());
    }

    #[test]
    fn opaques_have_a_limit() {
        let opaque = |len: usize| parse(&format!("mg k O{}", "x".repeat(len))).unwrap().opaque;
        assert!(!opaque(31).is_too_long());
        assert_eq!(opaque(31).as_bytes().len(), 32);
        assert!(opaque(32).is_too_long());
        assert!(opaque(1000).is_too_long());
    }
}
