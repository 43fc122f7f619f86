//! `contexts` and `use`: servers that have names. The rule that decides which server a command
//! contacts is in [`crate::servers`].

use std::path::{Path, PathBuf};

use blocker::Error;
use cached_config::BackendTable;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::base_of;
use crate::backend::BackendSpec;
use crate::command::Call;
use crate::output::Failure;
use crate::servers::{Context, Contexts, Given};

#[derive(Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts; an asterisk marks the one in use. This is the default.
    List,
    /// Add a context: cachectl contexts add prod --admin https://node1:9150 --backend
    /// synapse:node1:11311.
    ///
    /// The options --admin, --admin-token-file and --admin-ca-file of this command line are kept as
    /// well; the environment is ignored. Only the paths of secrets are kept, never their content.
    Add(Box<Add>),
    /// Remove a context.
    Remove {
        /// The name of the context.
        name: String,
    },
}

#[derive(Args)]
pub(crate) struct Add {
    /// The name of the context: letters, digits, dots, hyphens and underscores.
    #[arg(value_parser = context_name)]
    name: String,
    /// The backend, as for cachectl --backend.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<BackendSpec>,
    /// The file with the secret that a synapse: server requires.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Replace an existing context.
    #[arg(long)]
    replace: bool,
}

fn context_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=64).contains(&text.len()) && text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 letters, digits, dots, hyphens and underscores".into()),
    }
}

#[derive(Args)]
pub(crate) struct Use {
    /// The name of the context.
    #[arg(required_unless_present = "none")]
    name: Option<String>,
    /// Use no context.
    #[arg(long, conflicts_with = "name")]
    none: bool,
}

impl ContextCommand {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        match self {
            Self::List => list(call),
            Self::Add(add) => add.run(call),
            Self::Remove { name } => {
                let mut all = Contexts::read()?;
                all.get(name)?;
                all.contexts.remove(name);
                all.in_use.take_if(|in_use| in_use == name);
                all.write()?;
                call.output.write(format!("context {name} is removed"), &json!({ "context": name }))
            }
        }
    }
}

fn list(call: &Call<'_>) -> Result<(), Failure> {
    let all = Contexts::read()?;
    let width = all.contexts.keys().map(String::len).max().unwrap_or(0);
    for (name, context) in &all.contexts {
        let is_in_use = all.in_use.as_ref() == Some(name);
        let servers = [&context.admin, &context.backend].into_iter().flatten();
        let servers = servers.map(String::as_str).collect::<Vec<_>>().join("  ");
        let mark = if is_in_use { "*" } else { " " };
        let mut value = json!(context);
        value["context"] = json!(name);
        value["in_use"] = json!(is_in_use);
        call.output.write(format!("{mark} {name:width$}  {servers}"), &value)?;
    }
    Ok(())
}

impl Add {
    fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let Self { name, backend, secret_file, replace } = self;
        let servers = call.servers;
        // These options may precede the command, as for other commands.
        let backend = backend.as_ref().or(by_option(servers.backend));
        let secret_file = secret_file.as_deref().or(by_option(servers.secret_file));
        let admin = by_option(servers.admin).map(base_of).transpose()?;
        if admin.is_none() && backend.is_none() {
            return Err(Failure::usage("a context names a server: give --admin, --backend or both"));
        }
        let is_relative =
            |table: &BackendTable| matches!(table, BackendTable::File(file) if file.path.is_relative());
        if backend.is_some_and(|spec| is_relative(spec.table())) {
            return Err(Failure::usage(
                "--backend: a context needs an absolute path, as in file:/var/lib/cached",
            ));
        }
        if let Some(BackendTable::Rados(rados)) = backend.map(BackendSpec::table)
            && rados.librados.contains_key("key")
        {
            return Err(Failure::usage(
                "--backend: a context keeps no secret: name the file of the key, as in keyring=/etc/ceph/keyring",
            ));
        }
        let context = Context {
            admin,
            admin_token_file: by_option(servers.token_file).map(absolute).transpose()?,
            admin_ca_file: by_option(servers.ca_file).map(absolute).transpose()?,
            backend: backend.map(ToString::to_string),
            secret_file: secret_file.map(absolute).transpose()?,
        };
        let mut all = Contexts::read()?;
        if all.contexts.contains_key(name) && !replace {
            let failure = Failure::backend(format_args!("context {name}"), &Error::Exists);
            return Err(failure.leaves("--replace replaces it"));
        }
        all.contexts.insert(name.clone(), context);
        all.write()?;
        let text = format!("context {name} is kept in {}", Contexts::path()?.display());
        call.output.write(text, &json!({ "context": name }))
    }
}

/// Returns a value of the command line, not of the environment.
fn by_option<T>(given: Option<Given<T>>) -> Option<T> {
    given.filter(|given| !given.is_environment).map(|given| given.value)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(Failure::io(path.display()))
}

impl Use {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let mut all = Contexts::read()?;
        let text = match &self.name {
            Some(name) => {
                all.get(name)?;
                format!("context {name} is in use")
            }
            None => "no context is in use".to_owned(),
        };
        all.in_use.clone_from(&self.name);
        all.write()?;
        let name = self.name.as_ref().map_or(Value::Null, |name| json!(name));
        call.output.write(text, &json!({ "context": name }))
    }
}
