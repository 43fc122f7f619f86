//! The tables of the object service. Those that other programs have as well are in `cached-config`.
//! Nothing here opens a socket or a store, or starts a thread.
//!
//! | module | content |
//! |---|---|
//! | `service` | all tables of an object service, and the contents of files that they name |
//! | `election` | what `writer = "elected"` requires of the tables |
//! | `volumes` | `[volumes]` and `[nbd]` |

mod election;
mod service;
mod volumes;

pub(crate) use cached_config::{BackendTable, ConfigError, ObjectsTable, Secrets, SynapseTable};
pub(crate) use election::election_address;
pub use election::{check_election, is_elected};
pub use service::{ListenerFiles, ServiceConfig};
pub use volumes::{FuaName, NbdTable, VolumesTable};
