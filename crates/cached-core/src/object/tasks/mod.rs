//! How tasks wait and take turns: wait queues, the serial executor behind an object's exclusive
//! section, deadlines, and work that operations leave to the background. Nothing here knows of
//! objects.

pub(crate) mod background_queue;
pub(crate) mod deadline;
pub(crate) mod serial;
pub(crate) mod wait_queue;
