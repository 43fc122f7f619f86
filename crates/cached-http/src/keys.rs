//! The file of clients' keys: names, secrets and rights. A server can replace it while it is in use.

use serde::Deserialize;

/// The minimum length of a secret in bytes. A shorter secret could be guessed.
const SECRET_BYTES_MIN: usize = 16;

/// The content of a keys file. `P` is the scope of a right.
#[derive(Debug)]
pub struct KeyTable<P> {
    /// The keys, each with a different name.
    pub keys: Vec<KeyEntry<P>>,
    /// The scopes that may be read without a key.
    pub anonymous_read: Vec<P>,
}

/// One key. There is at least one scope.
pub struct KeyEntry<P> {
    /// The name: 1 to 128 visible ASCII characters, without separators of header values.
    pub name: String,
    /// The secret, at least 16 bytes.
    pub secret: String,
    /// The scopes that the key may read.
    pub read: Vec<P>,
    /// The scopes that the key may write.
    pub write: Vec<P>,
}

impl<P: std::fmt::Debug> std::fmt::Debug for KeyEntry<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, read, write, .. } = self;
        f.debug_struct("KeyEntry").field("name", name).field("read", read).field("write", write).finish()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileToml {
    #[serde(default)]
    keys: Vec<KeyToml>,
    #[serde(default)]
    anonymous: AnonymousToml,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyToml {
    access_key: String,
    secret_key: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AnonymousToml {
    #[serde(default)]
    read: Vec<String>,
}

/// Parses the text of a keys file, whose scopes `scope` parses. `example` is a scope for error
/// messages, such as `BUCKET/PREFIX`.
///
/// # Errors
/// Returns a one-line message that states the mistake and the correct form, without any secret.
pub fn parse_keys<P>(
    text: &str,
    example: &str,
    scope: impl Fn(&str) -> Result<P, String>,
) -> Result<KeyTable<P>, String> {
    let table = table(text, example)?;
    let scopes = |of: &str, texts: Vec<String>| {
        let each = texts.into_iter().map(|text| scope(&text).map_err(|why| format!("{of}: {why}")));
        each.collect::<Result<Vec<_>, _>>()
    };
    let anonymous_read = scopes("anonymous", table.anonymous.read)?;
    let mut keys: Vec<KeyEntry<P>> = Vec::with_capacity(table.keys.len());
    let mut names = std::collections::HashSet::new();
    for (number, key) in (1..).zip(table.keys) {
        let is_valid = |byte: u8| byte.is_ascii_graphic() && !b",;\"'".contains(&byte);
        let name = key.access_key;
        if name.is_empty() || name.len() > 128 || !name.bytes().all(is_valid) {
            return Err(format!(
                "the access_key of entry {number} must have 1 to 128 visible ASCII characters"
            ));
        }
        if key.secret_key.len() < SECRET_BYTES_MIN {
            return Err(format!("the secret_key of {name} must have at least {SECRET_BYTES_MIN} bytes"));
        }
        let (read, write) = (scopes(&name, key.read)?, scopes(&name, key.write)?);
        if read.is_empty() && write.is_empty() {
            return Err(format!("{name} has no rights; name a scope in read or write, or remove the key"));
        }
        if !names.insert(name.clone()) {
            return Err(format!("{name} occurs twice"));
        }
        keys.push(KeyEntry { name, secret: key.secret_key, read, write });
    }
    if keys.is_empty() && anonymous_read.is_empty() {
        return Err("has no key; expected [[keys]] with access_key, secret_key, read and write".into());
    }
    Ok(KeyTable { keys, anonymous_read })
}

/// The function is not generic, so that the code of the parser is compiled only in this crate.
fn table(text: &str, example: &str) -> Result<FileToml, String> {
    toml::from_str(text).map_err(|error| without_values(text, example, &error))
}

/// Returns an error message without values from the file, which could be secrets.
fn without_values(text: &str, example: &str, error: &toml::de::Error) -> String {
    let line =
        error.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.split('\n').count());
    let names_a_key = ["unknown field", "missing field", "duplicate key"];
    let message = error.message();
    let what = match names_a_key.iter().any(|start| message.starts_with(start)) {
        true => message.lines().next().unwrap_or_default().to_owned(),
        false => format!(
            "is malformed; expected [[keys]] with access_key, secret_key, read = [\"{example}\"] and write"
        ),
    };
    format!("line {line}: {what}")
}
