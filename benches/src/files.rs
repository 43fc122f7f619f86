//! Input files, plain or compressed.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};

/// Returns the content of a file, decompressed if its name ends in `.zst`, and its name without
/// this extension.
///
/// # Errors
/// Fails if the file cannot be read, or does not have the format of its extension.
pub fn read_plain_or_zst(path: &Path) -> Result<(String, Vec<u8>)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("opening {}", path.display()))?);
    let mut bytes = Vec::new();
    match name.strip_suffix(".zst") {
        Some(bare) => {
            ruzstd::decoding::StreamingDecoder::new(file)
                .with_context(|| format!("{} is not zstd", path.display()))?
                .read_to_end(&mut bytes)?;
            Ok((bare.to_owned(), bytes))
        }
        None => {
            file.read_to_end(&mut bytes)?;
            Ok((name.to_owned(), bytes))
        }
    }
}
