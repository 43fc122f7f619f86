//! The exit statuses of `cached` and `synapsed`, after `sysexits.h`, which service managers know by name.

/// A command line that cannot work (`EX_USAGE`).
pub const USAGE: u8 = 64;
/// There is no such user (`EX_NOUSER`).
pub const NO_USER: u8 = 67;
/// A defect has ended the process; everything acknowledged is stored (`EX_SOFTWARE`).
pub const DEFECT: u8 = 70;
/// The system or the store has refused something (`EX_OSERR`).
pub const REFUSED: u8 = 71;
/// Acknowledged data could not be stored at the end (`EX_IOERR`).
pub const NOT_STORED: u8 = 74;
/// The configuration is wrong (`EX_CONFIG`).
pub const CONFIGURATION: u8 = 78;
