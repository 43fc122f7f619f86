//! The rule that decides which server a command contacts, and the file with the contexts: servers
//! that have names.
//!
//! A command contacts one admin listener, or one backend. The first of these that is set names it:
//!
//! 1. the option: `--admin`, `--backend`; then `--context`;
//! 2. the environment: `CACHECTL_ADMIN`, `CACHECTL_BACKEND`; then `CACHECTL_CONTEXT`;
//! 3. the context in use (`cachectl use NAME`);
//! 4. the default: the admin listener on this host. There is no default backend.
//!
//! A chosen context alone decides: if it does not name what the command needs, the command fails
//! instead of contacting another server. The token, the authorities and the secret belong to the
//! address: those of a context are used only with its address, and those of the environment only
//! with any other one.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cached_config::{parse_config, suggestion};
use named_file::{Kinds, NamedFile};
use serde::{Deserialize, Serialize};

use crate::backend::BackendSpec;
use crate::output::Failure;

/// The admin listener that is used unless another one is named.
const ADMIN_DEFAULT: &str = "http://127.0.0.1:9150";

/// An option's value, and whether it comes from the environment instead of the command line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) is_environment: bool,
}

impl<T> Given<T> {
    /// Returns the value, if one was given.
    pub(crate) fn of(value: Option<T>, is_environment: bool) -> Option<Self> {
        value.map(|value| Self { value, is_environment })
    }
}

/// The values of the options that concern servers.
pub(crate) struct Servers<'a> {
    pub(crate) admin: Option<Given<&'a str>>,
    pub(crate) token_file: Option<Given<&'a Path>>,
    pub(crate) ca_file: Option<Given<&'a Path>>,
    pub(crate) backend: Option<Given<&'a BackendSpec>>,
    pub(crate) secret_file: Option<Given<&'a Path>>,
    pub(crate) context: Option<Given<&'a str>>,
    /// The file with the contexts, once something has needed it.
    pub(crate) contexts: OnceCell<Contexts>,
}

/// The source of a server's name, as shown in errors.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Origin {
    Given(&'static str),
    Context { name: String, by: &'static str },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(by) => write!(f, "named by {by}"),
            Self::Context { name, by } => write!(f, "of context {name}, named by {by}"),
            Self::Default => f.write_str("the default; --admin, CACHECTL_ADMIN or a context names another"),
        }
    }
}

/// An admin listener, and what authenticates both sides.
pub(crate) struct AdminServer {
    pub(crate) url: String,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) origin: Origin,
}

/// A backend, and the file with its secret.
pub(crate) struct BackendServer {
    pub(crate) spec: BackendSpec,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) origin: Origin,
}

/// Applies the rule. `names` are those of the option and of the variable.
fn choose<T>(
    given: Option<Given<T>>,
    names: [&'static str; 2],
    context: Option<Given<&str>>,
    in_use: impl FnOnce() -> Result<Option<String>, Failure>,
) -> Result<(Option<T>, Origin), Failure> {
    let of_context = |name: &str, by| Origin::Context { name: name.to_owned(), by };
    Ok(match (given, context) {
        (Some(Given { value, is_environment: false }), _) => (Some(value), Origin::Given(names[0])),
        (_, Some(Given { value, is_environment: false })) => (None, of_context(value, "--context")),
        (Some(Given { value, is_environment: true }), _) => (Some(value), Origin::Given(names[1])),
        (None, Some(Given { value, is_environment: true })) => (None, of_context(value, "CACHECTL_CONTEXT")),
        (None, None) => match in_use()? {
            Some(name) => (None, of_context(&name, "cachectl use")),
            None => (None, Origin::Default),
        },
    })
}

/// Returns the file that belongs to a server: the option's, then that of the server's own context
/// or, if no context names the server, of the environment.
fn file_of(given: Option<Given<&Path>>, context: Option<&Option<PathBuf>>) -> Option<PathBuf> {
    let given = given.filter(|given| context.is_none() || !given.is_environment);
    given.map(|given| given.value.to_owned()).or_else(|| context.cloned().flatten())
}

impl Servers<'_> {
    /// Returns the admin listener to ask.
    ///
    /// # Errors
    /// Fails if the context does not exist or names no admin listener, or if the file with the
    /// contexts is unusable.
    pub(crate) fn admin(&self) -> Result<AdminServer, Failure> {
        let names = ["--admin", "CACHECTL_ADMIN"];
        let (given, origin) = choose(self.admin, names, self.context, || self.in_use())?;
        let context = self.context_of(&origin)?;
        let url = match context {
            None => given.unwrap_or(ADMIN_DEFAULT).to_owned(),
            Some(context) => context.admin.clone().ok_or_else(|| lacks("admin listener", &origin))?,
        };
        let token_file = file_of(self.token_file, context.map(|context| &context.admin_token_file));
        let ca_file = file_of(self.ca_file, context.map(|context| &context.admin_ca_file));
        Ok(AdminServer { url, token_file, ca_file, origin })
    }

    /// Returns the backend to open.
    ///
    /// # Errors
    /// Fails if no backend is named, if the context does not exist or names no backend, or if the
    /// file with the contexts is unusable.
    pub(crate) fn backend(&self) -> Result<BackendServer, Failure> {
        let names = ["--backend", "CACHECTL_BACKEND"];
        let (given, origin) = choose(self.backend, names, self.context, || self.in_use())?;
        let context = self.context_of(&origin)?;
        let spec = match (context, given) {
            (None, Some(spec)) => spec.clone(),
            (None, None) => {
                let text = "no backend is given; name one, for example --backend file:DIR, or a context";
                return Err(Failure::usage(text));
            }
            (Some(context), _) => {
                let text = context.backend.as_ref().ok_or_else(|| lacks("backend", &origin))?;
                text.parse().map_err(|why| Failure::usage(format!("the backend {origin}: {why}")))?
            }
        };
        let secret_file = file_of(self.secret_file, context.map(|context| &context.secret_file));
        Ok(BackendServer { spec, secret_file, origin })
    }

    /// Returns whether a command that either side can answer asks the backend, over synapse: if the
    /// command line names a server as backend, and no admin listener; or if the chosen context
    /// names only such a backend, and nothing else names another backend.
    pub(crate) fn prefer_synapse(&self) -> Result<bool, Failure> {
        if self.backend.is_some_and(|given| !given.is_environment && given.value.is_server()) {
            return Ok(self.admin.is_none_or(|given| given.is_environment));
        }
        let in_use = || self.in_use();
        let (_, of_admin) = choose(self.admin, ["--admin", "CACHECTL_ADMIN"], self.context, in_use)?;
        let (_, of_backend) = choose(self.backend, ["--backend", "CACHECTL_BACKEND"], self.context, in_use)?;
        let context = self.context_of(&of_admin)?.filter(|_| of_admin == of_backend);
        let is_server = |text: &String| text.starts_with("synapse:");
        Ok(context.is_some_and(|context| {
            context.admin.is_none() && context.backend.as_ref().is_some_and(is_server)
        }))
    }

    fn context_of(&self, origin: &Origin) -> Result<Option<&Context>, Failure> {
        match origin {
            Origin::Context { name, .. } => self.contexts()?.get(name).map(Some),
            Origin::Given(_) | Origin::Default => Ok(None),
        }
    }

    fn in_use(&self) -> Result<Option<String>, Failure> {
        Ok(self.contexts()?.in_use.clone())
    }

    /// Returns the contexts; reads their file once.
    fn contexts(&self) -> Result<&Contexts, Failure> {
        if let Some(contexts) = self.contexts.get() {
            return Ok(contexts);
        }
        let contexts = Contexts::read()?;
        Ok(self.contexts.get_or_init(|| contexts))
    }
}

fn lacks(what: &str, origin: &Origin) -> Failure {
    let Origin::Context { name, by } = origin else { return Failure::usage(format!("there is no {what}")) };
    Failure::usage(format!(
        "context {name}, named by {by}, has no {what}: see cachectl contexts add --help; or name one by an option"
    ))
}

/// The servers that a name stands for. Secrets are named by their files, never stored.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Context {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
}

/// The file `contexts.toml`.
#[derive(PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_use: Option<String>,
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Returns the path of the file.
    ///
    /// # Errors
    /// Fails if the user has no directory for configurations.
    pub(crate) fn path() -> Result<PathBuf, Failure> {
        Self::path_if_any().ok_or_else(|| {
            Failure::usage(
                "contexts are kept in $XDG_CONFIG_HOME/cachectl or $HOME/.config/cachectl: set one of these",
            )
        })
    }

    fn path_if_any() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
        Some(folder.join("cachectl/contexts.toml"))
    }

    /// Reads the file. A missing file, or one in a directory that this user may not search, has no
    /// contexts.
    ///
    /// # Errors
    /// Fails if the file cannot be read, if others may change it, or if it has a mistake.
    pub(crate) fn read() -> Result<Self, Failure> {
        let Some(path) = Self::path_if_any() else { return Ok(Self::default()) };
        // A program that changes its user often keeps HOME, and then may not search that directory.
        let is_absent = |error: std::io::Error| {
            use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
            matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
        };
        if std::fs::metadata(&path).is_err_and(is_absent) {
            return Ok(Self::default());
        }
        let failed = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        let file = named_file::open(&path, Kinds::Regular).map_err(|error| failed(error.into()))?;
        let mode = file.metadata.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            let path = path.display();
            return Err(failed(format!(
                "others may change it (mode {mode:03o}); chmod 600 {path} prevents that"
            )));
        }
        let text = NamedFile::text(file).map_err(|error| failed(error.into()))?;
        parse_config(&path, &text).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Replaces the file atomically. Only its owner can read it.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let path = Self::path()?;
        let draft = path.with_extension(format!("toml.{}", std::process::id()));
        let written = (|| {
            let text = toml::to_string(self).map_err(std::io::Error::other)?;
            if let Some(folder) = path.parent() {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, &path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
        written.map_err(Failure::io(path.display()))
    }

    /// Returns a context.
    ///
    /// # Errors
    /// Fails if no context has this name.
    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let hint = suggestion(name, self.contexts.keys().map(String::as_str));
            Failure::usage(format!("there is no context {name:?}{hint}; cachectl contexts lists them"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_the_environment_before_the_context_in_use_before_the_default() {
        let given = |value, is_environment| Some(Given { value, is_environment });
        let context = |name: &str, by| (None, Origin::Context { name: name.to_owned(), by });
        let (option, variable) = (given("a", false), given("e", true));
        let (context_option, context_variable) = (given("c", false), given("v", true));
        for (address, named, in_use, right) in [
            (option, context_option, Some("u"), (Some("a"), Origin::Given("--admin"))),
            (variable, context_option, Some("u"), context("c", "--context")),
            (variable, context_variable, Some("u"), (Some("e"), Origin::Given("CACHECTL_ADMIN"))),
            (None, context_option, Some("u"), context("c", "--context")),
            (None, context_variable, Some("u"), context("v", "CACHECTL_CONTEXT")),
            (None, None, Some("u"), context("u", "cachectl use")),
            (None, None, None, (None, Origin::Default)),
        ] {
            let in_use = || Ok(in_use.map(str::to_owned));
            let found = choose(address, ["--admin", "CACHECTL_ADMIN"], named, in_use).unwrap();
            assert_eq!(found, right, "{address:?} {named:?}");
        }
        // The file with the contexts is read only if nothing else names a server.
        let unread = || -> Result<Option<String>, Failure> { panic!("it is not needed") };
        assert!(choose(variable, ["", ""], context_variable, unread).is_ok());
    }

    #[test]
    fn a_secret_goes_to_its_own_server_only() {
        let path = |name: &str| Some(PathBuf::from(name));
        let given =
            |name: &'static str, is_environment| Some(Given { value: Path::new(name), is_environment });
        for (option, context, right) in [
            (given("o", false), Some(path("c")), path("o")),
            (given("e", true), Some(path("c")), path("c")),
            (given("e", true), Some(None), None),
            (given("e", true), None, path("e")),
            (None, Some(path("c")), path("c")),
            (None, None, None),
        ] {
            assert_eq!(file_of(option, context.as_ref()), right, "{option:?} {context:?}");
        }
    }
}
