//! Both ends of a connection between two nodes, as machines over bytes.
