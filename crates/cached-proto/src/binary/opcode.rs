//! The opcodes. Those whose name ends in `Q` are the quiet forms of others.

#![allow(missing_docs, reason = "the names are the protocol's")]

pub const GET: u8 = 0x00;
pub const SET: u8 = 0x01;
pub const ADD: u8 = 0x02;
pub const REPLACE: u8 = 0x03;
pub const DELETE: u8 = 0x04;
pub const INCREMENT: u8 = 0x05;
pub const DECREMENT: u8 = 0x06;
pub const QUIT: u8 = 0x07;
pub const FLUSH: u8 = 0x08;
pub const GETQ: u8 = 0x09;
pub const NOOP: u8 = 0x0a;
pub const VERSION: u8 = 0x0b;
pub const GETK: u8 = 0x0c;
pub const GETKQ: u8 = 0x0d;
pub const APPEND: u8 = 0x0e;
pub const PREPEND: u8 = 0x0f;
pub const STAT: u8 = 0x10;
pub const SETQ: u8 = 0x11;
pub const ADDQ: u8 = 0x12;
pub const REPLACEQ: u8 = 0x13;
pub const DELETEQ: u8 = 0x14;
pub const INCREMENTQ: u8 = 0x15;
pub const DECREMENTQ: u8 = 0x16;
pub const QUITQ: u8 = 0x17;
pub const FLUSHQ: u8 = 0x18;
pub const APPENDQ: u8 = 0x19;
pub const PREPENDQ: u8 = 0x1a;
pub const TOUCH: u8 = 0x1c;
pub const GAT: u8 = 0x1d;
pub const GATQ: u8 = 0x1e;
pub const SASL_LIST_MECHS: u8 = 0x20;
pub const SASL_AUTH: u8 = 0x21;
pub const SASL_STEP: u8 = 0x22;
pub const GATK: u8 = 0x23;
pub const GATKQ: u8 = 0x24;

/// Returns the opcode of the form that is not quiet, and whether `opcode` was quiet.
#[inline]
pub(super) fn loud(opcode: u8) -> (u8, bool) {
    match opcode {
        GETQ => (GET, true),
        GETKQ => (GETK, true),
        GATQ => (GAT, true),
        GATKQ => (GATK, true),
        SETQ => (SET, true),
        ADDQ => (ADD, true),
        REPLACEQ => (REPLACE, true),
        DELETEQ => (DELETE, true),
        INCREMENTQ => (INCREMENT, true),
        DECREMENTQ => (DECREMENT, true),
        QUITQ => (QUIT, true),
        FLUSHQ => (FLUSH, true),
        APPENDQ => (APPEND, true),
        PREPENDQ => (PREPEND, true),
        _ => (opcode, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_forms() {
        assert_eq!(loud(PREPENDQ), (PREPEND, true));
        assert_eq!(loud(GATKQ), (GATK, true));
        assert_eq!((0..=u8::MAX).filter(|opcode| loud(*opcode).1).count(), 14);
    }
}
