//! Credentials from a file in the format of `~/.aws/credentials`, which may change while the store
//! is open.
//!
//! ```text
//! [default]
//! aws_access_key_id = …
//! aws_secret_access_key = …
//! aws_session_token = …          # of temporary ones
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use blocker::{Clock, Error, Result, Timestamp};
use named_file::{FileError, Kinds};
use object_store::aws::AwsCredential;
use object_store::client::CredentialProvider;
use parking_lot::Mutex;

/// The interval at which the file is checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The credentials of one profile of a file.
pub(crate) struct FileCredentials {
    path: PathBuf,
    profile: String,
    clock: Arc<dyn Clock>,
    last: Mutex<Last>,
}

/// The result of the last check.
struct Last {
    at: Timestamp,
    modified: Option<SystemTime>,
    credential: Arc<AwsCredential>,
}

impl fmt::Debug for FileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCredentials").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FileCredentials {
    /// Reads the file.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] with one line that names the file and the missing part.
    pub(crate) fn open(path: &Path, profile: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let wrong = |error: FileError| {
            unusable(error.reworded(|why| format!("credentials_file {}: {why}", path.display())))
        };
        let (credential, modified) = read(path, profile).map_err(wrong)?;
        let last = Last { at: clock.now(), modified, credential: Arc::new(credential) };
        Ok(Self { path: path.to_owned(), profile: profile.to_owned(), clock, last: Mutex::new(last) })
    }
}

#[async_trait]
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    /// Returns the last readable credentials, because a file that is being replaced may be
    /// incomplete.
    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut last = self.last.lock();
        let now = self.clock.now();
        if now.since(last.at) >= LOOK_EVERY {
            last.at = now;
            let modified = std::fs::metadata(&self.path).and_then(|file| file.modified()).ok();
            if modified.is_some()
                && modified != last.modified
                && let Ok((credential, modified)) = read(&self.path, &self.profile)
            {
                (last.credential, last.modified) = (Arc::new(credential), modified);
            }
        }
        Ok(Arc::clone(&last.credential))
    }
}

/// Returns the error of a store whose configuration names a file that cannot be used.
pub(super) fn unusable(error: FileError) -> Error {
    match error.is_mistake() {
        true => Error::Invalid(String::from(error).into()),
        false => Error::Retryable(String::from(error).into()),
    }
}

/// Returns the credentials of a profile, and the file's modification time.
fn read(path: &Path, profile: &str) -> std::result::Result<(AwsCredential, Option<SystemTime>), FileError> {
    let cannot = |error: FileError| error.reworded(|why| format!("cannot be read: {why}"));
    let file = named_file::open(path, Kinds::RegularOrPipe).map_err(cannot)?;
    // The time is read before the content, so that the next check detects a change in between.
    let modified = file.metadata.modified().ok();
    let credential = parse(&file.text().map_err(cannot)?, profile).map_err(FileError::mistake)?;
    Ok((credential, modified))
}

fn parse(text: &str, profile: &str) -> std::result::Result<AwsCredential, String> {
    let (mut is_ours, mut is_there) = (false, false);
    let (mut key_id, mut secret_key, mut token) = Default::default();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            is_ours = name.0.trim() == profile;
            is_there |= is_ours;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| is_ours) else { continue };
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        match key.trim() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    if !is_there {
        return Err(format!("has no profile [{profile}]"));
    }
    let lacks = |key: &str| format!("its profile [{profile}] lacks {key}");
    Ok(AwsCredential {
        key_id: key_id.ok_or_else(|| lacks("aws_access_key_id"))?,
        secret_key: secret_key.ok_or_else(|| lacks("aws_secret_access_key"))?,
        token,
    })
}

#[cfg(test)]
mod tests {
    use blocker::ManualClock;
    use blocker::executor::block_on;

    use super::*;

    const FILE: &str = "# two\n[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\n[ other ]\n\
                        aws_access_key_id=C\naws_secret_access_key = D\naws_session_token = E\nregion = eu\n";

    #[test]
    fn a_profile_is_found_in_the_file() {
        let found = |profile| {
            parse(FILE, profile)
                .map(|found| format!("{} {} {:?}", found.key_id, found.secret_key, found.token))
        };
        assert_eq!(found("default").unwrap(), "A B= None");
        assert_eq!(found("other").unwrap(), "C D Some(\"E\")");
        assert_eq!(found("third").unwrap_err(), "has no profile [third]");
        let error =
            parse("[default]\naws_access_key_id = A\naws_secret_access_key =", "default").unwrap_err();
        assert_eq!(error, "its profile [default] lacks aws_secret_access_key");
    }

    #[test]
    fn a_file_that_has_changed_is_read_again_and_one_that_is_damaged_is_not_taken() {
        let path = std::env::temp_dir().join(format!("blocker-s3-credentials-{}", std::process::id()));
        let put = |text: &str, seconds: u64| {
            let file = std::fs::File::create(&path).unwrap();
            std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        let clock = ManualClock::new();
        put(FILE, 1);
        let credentials = FileCredentials::open(&path, "default", Arc::new(clock.clone())).unwrap();
        let key = || block_on(credentials.get_credential()).unwrap().key_id.clone();
        put(&FILE.replace("= A", "= Z"), 2);
        assert_eq!(key(), "A", "not looked at yet");
        clock.advance(LOOK_EVERY);
        assert_eq!(key(), "Z");
        put("[default]", 3);
        clock.advance(LOOK_EVERY);
        assert_eq!(key(), "Z");
        std::fs::remove_file(&path).unwrap();
        clock.advance(LOOK_EVERY);
        assert_eq!(key(), "Z");
        let error = FileCredentials::open(&path, "default", Arc::new(clock)).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}
