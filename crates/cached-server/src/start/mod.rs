//! The life of the program beyond its memcached listener: the configuration is reloaded, the object
//! service is handed over with the items, and a sidecar runs in front of an S3 endpoint.

pub mod hand_over;
pub mod reload;
#[cfg(feature = "sidecar")]
pub mod sidecar;

#[cfg(not(feature = "sidecar"))]
pub mod sidecar {
    //! A replacement for the sidecar in a build without the feature `sidecar`. Its types have no
    //! values.

    use crate::config::{Config, File, SidecarSecrets};
    use cached_admin::AdminServer;
    use cached_process::Failure;
    use cached_tls::ServerTls;
    use std::sync::Arc;

    /// The settings of a sidecar that can change at run time.
    #[derive(Clone, Debug)]
    pub enum LiveSidecar {}

    impl LiveSidecar {
        pub(crate) fn change(&self, _: &File) -> Result<(), String> {
            match *self {}
        }
    }

    /// The sidecar, without which this program was built.
    #[derive(Debug)]
    pub enum RunningSidecar {}

    impl RunningSidecar {
        /// Starts nothing.
        ///
        /// # Errors
        /// None.
        pub fn start(
            _: &Config,
            _: Option<Arc<ServerTls>>,
            _: SidecarSecrets,
            _: Option<&AdminServer>,
        ) -> Result<Option<RunningSidecar>, Failure> {
            Ok(None)
        }

        /// Never called.
        pub fn announcement(&self) -> (String, u64) {
            match *self {}
        }

        /// Never called.
        pub fn live(&self) -> LiveSidecar {
            match *self {}
        }

        /// Never called.
        pub fn request_end(&self) {
            match *self {}
        }
    }
}
