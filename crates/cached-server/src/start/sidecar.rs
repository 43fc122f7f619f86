//! The sidecar before an S3 endpoint, as a part of the program. Without the feature `sidecar` there is none.

#[cfg(feature = "sidecar")]
mod running {
    use crate::config::s3_secrets::SidecarSecrets;
    use crate::config::{Config, File, S3Table};
    use cached_admin::AdminServer;
    use cached_metrics::Registration;
    use cached_process::{Exit, Failure};
    use cached_tls::ServerTls;
    use s3_sidecar::{ControlError, Sidecar, SidecarControl, SidecarError};
    use std::sync::Arc;
    use std::time::Duration;

    /// What of a sidecar can change while it runs.
    #[derive(Clone, Debug, Default)]
    pub struct LiveSidecar(Option<SidecarControl>);

    impl LiveSidecar {
        /// Puts its policies and what buckets have for themselves in force, and opens the file of its access log anew, for it may have been renamed.
        ///
        /// # Errors
        /// One line; then nothing has changed.
        pub(crate) fn change(&self, after: &File) -> Result<(), String> {
            let (Some(control), Some(table)) = (&self.0, &after.s3) else { return Ok(()) };
            let (policy, rules) = table.policies();
            let set = control.set_terms(table.terms()).and_then(|()| control.set_policies(policy, rules));
            match set {
                Ok(()) => control.reopen_access_log(),
                // It is ending, and so is the program.
                Err(ControlError::Ended) => (),
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        }
    }

    /// The sidecar, if one is configured. It ends when this is dropped.
    #[derive(Debug)]
    pub struct RunningSidecar(Option<Running>);

    #[derive(Debug)]
    struct Running {
        sidecar: Sidecar,
        table: S3Table,
        _shown: Option<Registration>,
    }

    impl RunningSidecar {
        /// Starts what `[s3]` describes, and shows its metrics at the admin listener.
        ///
        /// # Errors
        /// One line.
        pub fn start(
            config: &Config,
            tls: Option<Arc<ServerTls>>,
            secrets: SidecarSecrets,
            admin: Option<&AdminServer>,
        ) -> Result<RunningSidecar, Failure> {
            let Some(table) = &config.s3 else { return Ok(RunningSidecar(None)) };
            let drain_timeout = Duration::from_secs(config.settings.drain.timeout_secs);
            let sidecar = table.sidecar(tls, secrets, drain_timeout);
            let sidecar = sidecar.map_err(|error| config.mistake(error, Exit::Configuration))?;
            let sidecar = Sidecar::start(sidecar).map_err(|error| match error {
                SidecarError::Config { key, why } => {
                    config.mistake(S3Table::wrong((key, why)), Exit::Configuration)
                }
                error @ SidecarError::Thread(_) => Failure::new(Exit::Trouble, error),
                error => Failure::new(Exit::Refused, error),
            })?;
            if let Some(admin) = admin {
                crate::start::sidecar_commands::add_routes(admin.routes(), &sidecar.control());
            }
            let none = std::iter::empty::<(&str, &str)>;
            let shown = admin.map(|admin| admin.registry().register(sidecar.metrics(), none()));
            Ok(RunningSidecar(Some(Running { sidecar, table: table.clone(), _shown: shown })))
        }

        /// Returns whether there is one.
        pub fn is_some(&self) -> bool {
            self.0.is_some()
        }

        /// Returns a line that says where it is, and the most memory that it takes, in bytes.
        pub fn announcement(&self) -> Option<(String, u64)> {
            let Running { sidecar, table, .. } = self.0.as_ref()?;
            let addresses: Vec<String> = sidecar.addresses().iter().map(ToString::to_string).collect();
            let endpoint = table.upstream.split("://").last().unwrap_or_default();
            Some((format!("S3 on {} before {endpoint}", addresses.join(", ")), table.bytes_max()))
        }

        /// Returns what of it can change while it runs.
        pub fn live(&self) -> LiveSidecar {
            LiveSidecar(self.0.as_ref().map(|running| running.sidecar.control()))
        }

        /// Closes its listeners; requests under way go on.
        pub fn request_end(&self) {
            self.0.iter().for_each(|running| running.sidecar.request_end());
        }
    }
}

#[cfg(not(feature = "sidecar"))]
mod running {
    /// What of a sidecar can change while it runs: nothing, as there is none.
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

    use crate::config::Config;
    use crate::config::s3_secrets::SidecarSecrets;
    use cached_admin::AdminServer;
    use cached_process::Failure;
    use cached_tls::ServerTls;
    use std::sync::Arc;

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
}

pub use running::{LiveSidecar, RunningSidecar};
