//! The keys in the body of a multi-object deletion, read as it passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

/// The maximum length of a body that is examined, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;

/// The maximum total size of all bodies that are examined concurrently, in bytes.
const BODIES_BYTES_MAX: usize = 32 << 20;

/// The maximum number of keys in a request.
const KEYS_MAX: usize = 10_000;

/// The number of body bytes held.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

/// The copied part of a body that passes through. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Passing(Arc<Mutex<Copied>>);

#[derive(Debug)]
struct Copied {
    held: Arc<Held>,
    /// The bytes, or `None` once the body is too long.
    bytes: Option<Vec<u8>>,
}

impl Passing {
    pub(crate) fn new(held: &Arc<Held>) -> Self {
        Self(Arc::new(Mutex::new(Copied { held: Arc::clone(held), bytes: Some(Vec::new()) })))
    }

    /// Adds the next bytes.
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut copied = self.0.lock();
        let Copied { held, bytes: Some(all) } = &mut *copied else { return };
        let held_bytes = held.0.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        all.extend_from_slice(bytes);
        if all.len() > BODY_BYTES_MAX || held_bytes > BODIES_BYTES_MAX {
            copied.give_up();
        }
    }

    /// Returns the keys in the body, or `None` if they cannot be determined with certainty.
    pub(crate) fn keys(&self) -> Option<Vec<String>> {
        let mut copied = self.0.lock();
        let keys = keys(copied.bytes.as_deref()?);
        copied.give_up();
        keys
    }
}

impl Copied {
    fn give_up(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.held.0.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Returns the keys in the body of a `DeleteObjects`, or `None` if anything in it is ambiguous.
fn keys(body: &[u8]) -> Option<Vec<String>> {
    let mut reader = Reader::from_str(std::str::from_utf8(body).ok()?);
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut keys = Vec::new();
    let mut key = None;
    let mut is_over = false;
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) => {
                path.push(element.local_name().as_ref().to_vec());
                let names: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
                let is_object = matches!(names[..], [b"Delete", b"Object", ..] | [b"Delete"]);
                match names[..] {
                    _ if is_over || key.is_some() || path.len() > 8 => return None,
                    [b"Delete", b"Object", b"Key"] => key = Some(String::new()),
                    [.., b"Key" | b"Object"] if names.len() != 2 || !is_object => return None,
                    [root] if root != b"Delete" => return None,
                    _ => (),
                }
            }
            Event::End(_) => {
                path.pop();
                is_over = path.is_empty();
                let Some(key) = key.take() else { continue };
                if key.is_empty() || key.trim() != key || keys.len() == KEYS_MAX {
                    return None;
                }
                keys.push(key);
            }
            Event::Text(text) => {
                let text = text.decode().ok()?;
                match &mut key {
                    // Parsers differ in their treatment of line ends.
                    Some(_) if text.contains('\r') => return None,
                    Some(key) => key.push_str(&text),
                    None if path.is_empty() && !text.trim().is_empty() => return None,
                    None => (),
                }
            }
            Event::GeneralRef(reference) => {
                let Some(key) = &mut key else { continue };
                match reference.resolve_char_ref().ok()? {
                    Some(letter) => key.push(letter),
                    None => key.push_str(resolve_predefined_entity(&reference.decode().ok()?)?),
                }
            }
            Event::Decl(declaration) => {
                let encoding = declaration.encoding().transpose().ok()?;
                if encoding.is_some_and(|name| !name.eq_ignore_ascii_case(b"utf-8")) {
                    return None;
                }
            }
            Event::Eof => return is_over.then_some(keys),
            Event::DocType(_) | Event::PI(_) => return None,
            Event::Comment(_) | Event::CData(_) if key.is_some() => return None,
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_deletion_are_read() {
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n\
            <Quiet>true</Quiet> <Object><Key>a</Key><VersionId>1</VersionId></Object>\n\
            <Object><VersionId/><Key>b &amp; &#x26;&#252;<!-- --></Key></Object></Delete>\n";
        assert_eq!(keys(body.as_bytes()), None);
        let body = body.replace("<!-- -->", "");
        assert_eq!(keys(body.as_bytes()).unwrap(), ["a", "b & &ü"]);
        assert_eq!(keys(b"<Delete/>"), Some(Vec::new()));
    }

    #[test]
    fn what_could_be_understood_in_two_ways_is_not_read() {
        let one = |key: &str| format!("<Delete><Object><Key>{key}</Key></Object></Delete>");
        assert_eq!(keys(one("a").as_bytes()).unwrap(), ["a"]);
        for body in [
            one(" a"),
            one("a\r\nb"),
            one(""),
            one("<![CDATA[a]]>"),
            one("&unknown;"),
            one("<x/>"),
            one("a") + "x",
            one("a") + &one("b"),
            "5;chunk-signature=0\r\n".to_owned() + &one("a") + "\r\n0;chunk-signature=0\r\n",
            one("a").replace("Delete", "Other"),
            one("a").replace("Object", "Thing"),
            "<Delete><Key>a</Key></Delete>".into(),
            "<Delete><Object><Object><Key>a</Key></Object></Object></Delete>".into(),
            "<Delete><Object><Key>a</Key>".into(),
            "<!DOCTYPE x [<!ENTITY a \"b\">]>".to_owned() + &one("a"),
            "<?xml version=\"1.0\" encoding=\"latin-1\"?>".to_owned() + &one("a"),
            String::new(),
        ] {
            assert_eq!(keys(body.as_bytes()), None, "{body}");
        }
        let many = "<Object><Key>a</Key></Object>".repeat(KEYS_MAX + 1);
        assert_eq!(keys(format!("<Delete>{many}</Delete>").as_bytes()), None);
    }

    #[test]
    fn what_is_held_of_bodies_is_limited() {
        let held = Arc::new(Held::default());
        let full = |held| Passing::new(held);
        let long = full(&held);
        long.push(&vec![b' '; BODY_BYTES_MAX + 1]);
        assert_eq!((long.keys(), held.0.load(Ordering::Relaxed)), (None, 0));
        let many: Vec<Passing> = (0..17).map(|_| full(&held)).collect();
        many.iter().for_each(|each| each.push(&vec![b' '; BODY_BYTES_MAX]));
        assert_eq!(held.0.load(Ordering::Relaxed), BODIES_BYTES_MAX);
        drop((many, long));
        assert_eq!(held.0.load(Ordering::Relaxed), 0);
    }
}
