//! How tasks wait and take their places: wait queues, the serial executor behind an object's exclusive section,
//! deadlines, and the work that operations leave to the background. Nothing here knows what an object is.

pub(crate) mod background_queue;
pub(crate) mod deadline;
pub(crate) mod serial;
pub(crate) mod wait_queue;
