//! What this program prints on a terminal.

use std::{
    borrow::Cow,
    io::{self, ErrorKind, Write},
};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const ODD: Style = AnsiColor::Yellow.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default();

/// The text without control sequences for a terminal: names, values and messages come from others.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean.into()
}

/// Whether a character is more than a visible one.
fn steers(c: char) -> bool {
    directs(c) || c.is_control()
}

/// Whether a character separates lines, or changes the direction of a text.
fn directs(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Says on standard error what went wrong with this subcommand.
pub(super) fn problem(subcommand: &str, problem: &str) {
    // If even this cannot be written, the exit code must do.
    let _ = writeln!(io::stderr(), "peerpod-operator {subcommand}: {problem}");
}

/// Whether a report was written. A reader that closes the pipe has seen enough.
pub(super) fn reported(written: io::Result<()>) -> Result<bool, String> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("writing the report failed: {error}")),
        Ok(()) => Ok(true),
    }
}

/// Writes a JSON document. JSON allows characters in texts that control a terminal: they are written as numbers.
pub(super) fn json(out: &mut dyn Write, document: &(impl Serialize + ?Sized)) -> io::Result<()> {
    // Line ends occur only between texts: those in texts are escaped already.
    write_escaped(out, &serde_json::to_string_pretty(document)?, |c| c != '\n' && steers(c))?;
    writeln!(out)
}

/// Writes a YAML document. Its writer escapes control characters, and leaves those that change the direction of a text: they are
/// written as numbers. A text in quotes is read as it was. One without has no escapes, and then holds the visible number.
pub(super) fn yaml(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    write_escaped(out, &serde_saphyr::to_string(document).map_err(io::Error::other)?, directs)
}

/// Writes a text with a number, as JSON and YAML write it, in place of each of `these` characters.
fn write_escaped(out: &mut dyn Write, text: &str, these: impl Fn(char) -> bool) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| these(*c)) {
        write!(out, "{}\\u{:04x}", &rest[..at], u32::from(c))?;
        rest = &rest[at + c.len_utf8()..];
    }
    write!(out, "{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        assert_eq!(clean("web-1 é 日本"), "web-1 é 日本");
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        for c in ['\u{7f}', '\u{9b}', '\r', '\u{202e}', '\u{2066}', '\u{2028}'] {
            let text = c.to_string();
            assert!(clean(&text).is_ascii(), "{:?}", clean(&text));
        }
    }

    const EVIL: &str = "a\u{1b}[2J\u{9b}2J\u{7f}\nb\r\u{202e}c: \"d\" é";

    #[test]
    fn no_text_of_a_document_steers_a_terminal_and_it_is_read_as_it_was() {
        let document = [(EVIL, vec![EVIL])];
        let mut json = Vec::new();
        super::json(&mut json, &document).unwrap();
        let json = String::from_utf8(json).unwrap();
        let mut yaml = Vec::new();
        super::yaml(&mut yaml, &document).unwrap();
        let yaml = String::from_utf8(yaml).unwrap();
        for text in [&json, &yaml] {
            assert!(!text.contains(|c: char| steers(c) && c != '\n'), "{text:?}");
        }
        assert_eq!(serde_json::from_str::<[(String, Vec<String>); 1]>(&json).unwrap()[0].0, EVIL);
        assert_eq!(serde_saphyr::from_str::<Vec<(String, Vec<String>)>>(&yaml).unwrap()[0].1, [EVIL]);
    }

    #[test]
    fn yaml_shows_where_the_direction_of_a_text_would_change() {
        // Without control characters, a text stands there without quotes.
        let texts = ["a\u{202e}b", "\u{61c}", "c\u{2066}: \u{200f}d"];
        let mut yaml = Vec::new();
        super::yaml(&mut yaml, &texts).unwrap();
        let yaml = String::from_utf8(yaml).unwrap();
        assert!(yaml.is_ascii() && yaml.contains("a\\u202eb"), "{yaml}");
        assert_eq!(serde_saphyr::from_str::<Vec<String>>(&yaml).unwrap().len(), texts.len(), "{yaml}");
    }
}
