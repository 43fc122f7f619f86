//! The secrets of the sidecar before an S3 endpoint, whose files are read before it starts and on request. Without the feature
//! `sidecar` there are none.

#[cfg(feature = "sidecar")]
pub use s3_sidecar::Secrets as SidecarSecrets;

#[cfg(not(feature = "sidecar"))]
mod none {
    /// The secrets of a sidecar, of which there are none.
    #[derive(Clone, Debug, Default)]
    pub struct SidecarSecrets;

    impl SidecarSecrets {
        /// Reads nothing.
        ///
        /// # Errors
        /// None.
        pub fn read_again(&self) -> Result<SidecarSecrets, String> {
            Ok(SidecarSecrets)
        }

        /// Returns nothing.
        pub fn put_in_force(self) -> Vec<&'static str> {
            Vec::new()
        }
    }
}

#[cfg(not(feature = "sidecar"))]
pub use none::SidecarSecrets;
