//! The sidecar in a program that was built without the feature `sidecar`: there is none.

use crate::config::{Config, SidecarSecrets};
use cached_admin::AdminServer;
use cached_process::Failure;
use cached_tls::ServerTls;
use std::sync::Arc;

/// The settings of a sidecar that can change while it runs: none.
#[derive(Clone, Debug, Default)]
pub struct LiveSidecar;

impl LiveSidecar {
    /// Changes nothing.
    ///
    /// # Errors
    /// None.
    pub(crate) fn change(&self, _: &crate::config::File) -> Result<(), String> {
        Ok(())
    }
}

/// The sidecar, which this program was built without.
#[derive(Debug)]
pub struct RunningSidecar;

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
    ) -> Result<RunningSidecar, Failure> {
        Ok(RunningSidecar)
    }

    /// Returns false.
    pub fn is_some(&self) -> bool {
        false
    }

    /// Returns nothing.
    pub fn announcement(&self) -> Option<(String, u64)> {
        None
    }

    /// Returns nothing.
    pub fn live(&self) -> LiveSidecar {
        LiveSidecar
    }

    /// Does nothing.
    pub fn request_end(&self) {}
}
