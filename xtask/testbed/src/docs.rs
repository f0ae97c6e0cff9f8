//! The commands that README.md and the pages of docs/ give to readers.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// README.md and every page of docs/, by path in the repository. They are read at run time, so that a changed word
/// does not rebuild a program.
pub fn pages() -> Result<BTreeMap<PathBuf, String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = BTreeMap::new();
    let mut paths = vec![PathBuf::from("README.md"), PathBuf::from("docs/src")];
    while let Some(path) = paths.pop() {
        let file = root.join(&path);
        if file.is_dir() {
            for entry in fs::read_dir(&file).with_context(|| format!("listing {}", file.display()))? {
                paths.push(path.join(entry?.file_name()));
            }
        } else {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            pages.insert(path, text);
        }
    }
    Ok(pages)
}

/// The commands of the block ```` ```sh ```` after the mark `<!-- run NAME -->`, on whatever page.
pub fn block(name: &str) -> Result<String> {
    let pages = pages()?;
    let mut blocks = pages.values().flat_map(|text| blocks(text, "run")).filter(|(it, _)| *it == name);
    match (blocks.next(), blocks.next()) {
        (Some((_, commands)), None) => Ok(commands.to_owned()),
        (None, _) => bail!("no page has a block ```sh after <!-- run {name} -->"),
        (Some(_), Some(_)) => bail!("more than one block has the mark <!-- run {name} -->"),
    }
}

/// The blocks that have a mark of this kind, as `run` in `<!-- run NAME -->`: name and commands.
pub fn blocks<'a>(text: &'a str, kind: &str) -> Vec<(&'a str, &'a str)> {
    let mark = format!("<!-- {kind} ");
    let after_marks = text.split(mark.as_str()).skip(1);
    let block = |rest: &'a str| {
        let (name, rest) = rest.split_once(" -->\n```sh\n")?;
        let (commands, _) = rest.split_once("\n```\n")?;
        (!name.contains('\n')).then_some((name, commands))
    };
    after_marks.filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_follows_its_mark() {
        let text = "a\n<!-- run x -->\n```sh\none\ntwo\n```\n\n<!-- run y -->\nnone\n<!-- copy z -->\n```sh\nc\n```\n";
        assert_eq!(blocks(text, "run"), [("x", "one\ntwo")]);
        assert_eq!(blocks(text, "copy"), [("z", "c")]);
    }
}
