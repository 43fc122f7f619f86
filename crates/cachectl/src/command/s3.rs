//! `s3`: what an operator asks of the S3 sidecar of a running `cached`, by its admin listener.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::{Admin, AdminArguments};
use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct S3 {
    #[command(subcommand)]
    command: S3Command,
}

#[derive(Subcommand)]
enum S3Command {
    /// Make void what the sidecar knows of objects: the next read of each asks the endpoint.
    Invalidate {
        /// BUCKET, an object as BUCKET/KEY, or all whose keys begin with something as BUCKET/PREFIX*.
        objects: String,
    },
}

impl S3 {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let S3Command::Invalidate { objects } = &self.command;
        let answer = Admin::new(arguments, timeout)?.post("/s3/invalidate", &body(objects)?)?;
        output.write(format!("the endpoint is asked for {objects} again"), &answer)
    }
}

/// Returns the body of the request for objects that an argument names.
fn body(objects: &str) -> Result<Value, Failure> {
    let (bucket, key) = objects.split_once('/').unwrap_or((objects, ""));
    if bucket.is_empty() || bucket.contains('*') {
        let right = "BUCKET, BUCKET/KEY or BUCKET/PREFIX* is right";
        return Err(Failure::Usage(format!("{objects:?} names no bucket; {right}")));
    }
    Ok(match key.strip_suffix('*') {
        Some(prefix) => json!({ "bucket": bucket, "prefix": prefix }),
        None if key.is_empty() => json!({ "bucket": bucket }),
        None => json!({ "bucket": bucket, "key": key }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_a_path() {
        for (objects, right) in [
            ("media", json!({ "bucket": "media" })),
            ("media/", json!({ "bucket": "media" })),
            ("media/*", json!({ "bucket": "media", "prefix": "" })),
            ("media/a/b", json!({ "bucket": "media", "key": "a/b" })),
            ("media/a/b*", json!({ "bucket": "media", "prefix": "a/b" })),
            ("media/a*b", json!({ "bucket": "media", "key": "a*b" })),
        ] {
            assert_eq!(body(objects).unwrap_or_default(), right, "{objects}");
        }
        assert!(body("/key").is_err() && body("*").is_err() && body("").is_err());
    }
}
