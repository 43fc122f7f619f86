//! Whether a document is an error: S3 answers some changes with 200 before it makes them, and states an error in the body.

/// The outermost element of a document of XML, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Root {
    place: Place,
    /// The beginning of its name.
    name: Vec<u8>,
}

/// Where in the document the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the element. S3 sends white space while it is at work.
    #[default]
    Before,
    /// Behind a `<`.
    Opened,
    /// In a declaration or a comment.
    Aside,
    /// In the element's name.
    Name,
    /// Behind it, or in what is no XML.
    Done,
}

/// The name of an error's element.
const ERROR: &[u8] = b"Error";

impl Root {
    /// Takes the next bytes of the document.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.place = match (self.place, byte) {
                (Place::Done, _) => return,
                // The mark of UTF-8 may be before everything.
                (Place::Before, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf) => Place::Before,
                (Place::Before, b'<') => Place::Opened,
                (Place::Opened, b'?' | b'!') => Place::Aside,
                (Place::Aside, b'>') => Place::Before,
                (Place::Aside, _) => Place::Aside,
                (Place::Opened | Place::Name, byte) if byte.is_ascii_alphanumeric() && !self.is_full() => {
                    self.name.push(*byte);
                    Place::Name
                }
                // A prefix of a name space.
                (Place::Name, b':') => {
                    self.name.clear();
                    Place::Name
                }
                _ => Place::Done,
            };
        }
    }

    fn is_full(&self) -> bool {
        self.name.len() > ERROR.len()
    }

    /// Returns whether the document is an error.
    pub(crate) fn is_error(&self) -> bool {
        self.name == ERROR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_known_in_any_pieces() {
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
        for (text, is_error) in [
            ("<Error><Code>InternalError</Code></Error>", true),
            (&format!("{declaration}\n\n   <Error xmlns=\"x\">"), true),
            (&format!("\u{feff} {declaration}<!-- a -->\r\n<s3:Error>"), true),
            ("<Error/>", true),
            ("<CopyObjectResult><Error>x</Error></CopyObjectResult>", false),
            ("<DeleteResult><Error>", false),
            ("<Errors>", false),
            ("<a:Errors>", false),
            ("Error", false),
            ("{\"<Error>\": 1}", false),
            ("", false),
        ] {
            for len in [1, 3, 1000] {
                let mut root = Root::default();
                text.as_bytes().chunks(len).for_each(|bytes| root.see(bytes));
                assert_eq!(root.is_error(), is_error, "{text} by {len}");
            }
        }
    }
}
