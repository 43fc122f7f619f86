//! The ring of nodes to which the server belongs, if it belongs to one: the map in force, which
//! slots are the node's own, and the connections (*lanes*) on which requests for other slots are
//! passed to their owners.
