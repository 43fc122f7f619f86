//! Which slots a changed set of nodes should own.
