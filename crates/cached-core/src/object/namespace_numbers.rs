//! The numbers by which is counted what each namespace has.

/// The most namespaces that are counted apart, and can have settings of their own.
pub(crate) const NAMESPACES_MAX: usize = 4096;
/// The number of the record that stands for all others.
pub(crate) const OTHERS: u16 = 0;
