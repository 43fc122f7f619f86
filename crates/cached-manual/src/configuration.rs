//! Generates the manual page of a configuration file from the shipped file, whose comments explain
//! each key: the page always has the keys and the words of the file.
//!
//! | line of the file | on the page |
//! |---|---|
//! | `# --- Title ---` | a section |
//! | `[table]`, `#[table]` | a subsection; a comment just above it comes first in it |
//! | `key = value`, `#key = value` | an entry, with the comment above it; adjacent keys share one entry |
//! | `# words` | a paragraph, up to an empty comment or line |
//! | `#   words` | a line that is shown as it is |

use clap_mangen::roff::{Roff, bold, roman};

/// Returns the page in section 5 of the manual.
pub(crate) fn page(program: &str, version: &str, file_name: &str, text: &str) -> String {
    let mut page = Page::default();
    let source = format!("{program} {version}");
    // The page has no date.
    page.roff.control("TH", [file_name, "5", "\"\"", source.trim_end()]);
    page.roff.control("SH", ["NAME"]);
    page.roff.text([roman(format!("{file_name} - configuration of {program}"))]);
    page.roff.control("SH", ["DESCRIPTION"]);
    text.lines().for_each(|line| page.line(line));
    page.end_of_entry();
    page.roff.control("SH", ["SEE ALSO"]);
    page.roff.text([bold(program), roman("(1)")]);
    page.roff.render()
}

/// A page, and the part of its next entry that has been read.
#[derive(Default)]
struct Page {
    roff: Roff,
    comment: Vec<Part>,
    keys: Vec<String>,
}

/// A part of a comment.
enum Part {
    Paragraph(String),
    /// A line that is shown unchanged.
    Line(String),
}

impl Page {
    fn line(&mut self, line: &str) {
        if let Some(title) = line.strip_prefix("# --- ") {
            self.end_of_entry();
            self.roff.control("SH", [title.trim_end_matches(['-', ' ']).to_uppercase().as_str()]);
        } else if line == "#" || line.starts_with("# ") {
            if !self.keys.is_empty() {
                self.end_of_entry();
            }
            self.comment(&line[1..]);
        } else if line.is_empty() {
            self.end_of_entry();
        } else if line.trim_start_matches('#').starts_with('[') {
            let comment = std::mem::take(&mut self.comment);
            self.end_of_entry();
            self.roff.control("SS", [line]);
            self.paragraphs(comment);
        } else {
            self.keys.push(line.to_owned());
        }
    }

    fn comment(&mut self, line: &str) {
        let words = line.trim_start();
        match self.comment.last_mut() {
            _ if line.starts_with("   ") => self.comment.push(Part::Line(line[3..].to_owned())),
            Some(Part::Paragraph(text)) if !words.is_empty() && !text.is_empty() => {
                text.push('\n');
                text.push_str(words);
            }
            _ => self.comment.push(Part::Paragraph(words.to_owned())),
        }
    }

    /// Writes the comment and the keys that have been read.
    fn end_of_entry(&mut self) {
        let comment = std::mem::take(&mut self.comment);
        let keys = std::mem::take(&mut self.keys);
        if keys.is_empty() {
            return self.paragraphs(comment);
        }
        for (index, key) in keys.into_iter().enumerate() {
            self.roff.control(if index == 0 { "TP" } else { "TQ" }, []);
            self.roff.text([bold(key)]);
        }
        self.parts(comment, "IP");
    }

    fn paragraphs(&mut self, comment: Vec<Part>) {
        if !comment.is_empty() {
            self.roff.control("PP", []);
            self.parts(comment, "PP");
        }
    }

    /// Writes the parts of a comment; the macro `separator` begins each paragraph after the first.
    fn parts(&mut self, comment: Vec<Part>, separator: &str) {
        let mut is_after = false;
        let mut is_in_lines = false;
        for part in comment {
            let is_line = matches!(part, Part::Line(_));
            if is_line != is_in_lines {
                self.roff.control(if is_line { "nf" } else { "fi" }, []);
                is_in_lines = is_line;
            }
            match part {
                Part::Line(line) => drop(self.roff.text([roman(line)])),
                Part::Paragraph(text) if text.is_empty() => continue,
                Part::Paragraph(text) => {
                    if is_after {
                        self.roff.control(separator, []);
                    }
                    self.roff.text([roman(text)]);
                }
            }
            is_after = true;
        }
        if is_in_lines {
            self.roff.control("fi", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Configuration of example.\n#\n# Second\n# paragraph.\n#\n#   example --check   checks\n\n\n\
        # --- The log ------\n[log]\n\n# The level, and\n# .the format.\n#level = \"info\"\n#format = \"a-b\"\n# Whether.\n\
        on = true\n\n# A table.\n#[a.b]\n#key = 1\n";

    #[test]
    fn sections_tables_and_entries_follow_the_file() {
        let page = page("example", "1.2", "example.toml", FILE);
        let wanted = ".TH example.toml 5 \"\" \"example 1.2\"\n.SH NAME\nexample.toml \\- configuration of example\n\
            .SH DESCRIPTION\n.PP\nConfiguration of example.\n.PP\nSecond\nparagraph.\n.nf\nexample \\-\\-check   checks\n.fi\n\
            .SH \"THE LOG\"\n.SS [log]\n\
            .TP\n\\fB#level = \"info\"\\fR\n.TQ\n\\fB#format = \"a\\-b\"\\fR\nThe level, and\n\\&.the format.\n\
            .TP\n\\fBon = true\\fR\nWhether.\n\
            .SS #[a.b]\n.PP\nA table.\n.TP\n\\fB#key = 1\\fR\n\
            .SH \"SEE ALSO\"\n\\fBexample\\fR(1)\n";
        assert!(page.ends_with(wanted), "{page}\nwanted:\n{wanted}");
    }

    #[test]
    fn a_line_between_paragraphs_ends_the_first() {
        let page = page("example", "", "example.toml", "# One:\n#   a    b\n#   c\n# Two.\n#key = 1\n");
        let wanted = ".TP\n\\fB#key = 1\\fR\nOne:\n.nf\na    b\nc\n.fi\n.IP\nTwo.\n";
        assert!(page.contains(wanted), "{page}");
    }
}
