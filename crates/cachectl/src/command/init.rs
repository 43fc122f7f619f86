//! `init`: makes a file store. Elsewhere a store that is missing is an error.

use std::path::PathBuf;

use blocker::FileStore;
use clap::Args;
use serde_json::json;

use crate::exit::{About, Failure};
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Init {
    /// The directory of the store. It is made with its parents if it is missing, and must be empty otherwise.
    dir: PathBuf,
}

impl Init {
    pub(crate) fn run(&self, output: &Output) -> Result<(), Failure> {
        let shown = self.dir.display();
        FileStore::create(&self.dir).about(&shown)?;
        output.write(format!("{shown} is a store by now"), &json!({ "dir": self.dir.to_string_lossy() }))
    }
}
