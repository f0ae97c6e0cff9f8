//! The commands that README.md tells its readers to run.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

/// The commands of the block that follows the mark `<!-- run NAME -->`.
pub fn block(name: &str) -> Result<String> {
    // Read now, so that no program is built anew for a word in it.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    find(&text, name).with_context(|| format!("README.md has no block ```sh after <!-- run {name} -->"))
}

fn find(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<!-- run {name} -->\n```sh\n"))?;
    let (block, _) = rest.split_once("\n```\n")?;
    Some(block.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_follows_its_mark() {
        let text = "a\n<!-- run x -->\n```sh\none\ntwo\n```\n\n<!-- run y -->\nnone\n";
        assert_eq!(find(text, "x").as_deref(), Some("one\ntwo"));
        assert_eq!(find(text, "y"), None);
    }
}
