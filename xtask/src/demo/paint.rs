//! Text for terminals and for files.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal as _},
};

/// The width of all text except the output of commands.
pub(super) const WIDTH: usize = 100;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

impl Style {
    /// The parameter of the terminal's SGR sequence.
    fn parameter(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Bold => 1,
            Self::Dim => 2,
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Blue => 34,
            Self::Magenta => 35,
            Self::Cyan => 36,
        }
    }
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    colours: bool,
}

impl Paint {
    /// Colours if standard output is a terminal that supports them and `NO_COLOR` is not set.
    pub(super) fn for_stdout() -> Self {
        let set = |variable| env::var_os(variable).filter(|value| !value.is_empty());
        let knows = set("TERM").is_some_and(|terminal| terminal != "dumb");
        Self { colours: io::stdout().is_terminal() && knows && set("NO_COLOR").is_none() }
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { colours: false }
    }

    /// The text in this style.
    pub(super) fn paint(self, style: Style, text: impl Display) -> String {
        if self.colours && style != Style::Plain {
            format!("\x1b[{}m{text}\x1b[0m", style.parameter())
        } else {
            text.to_string()
        }
    }
}

/// Breaks text between words into lines of at most `width` characters. A longer word gets a line of its own.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        // There is always a last line.
        let Some(line) = lines.last_mut() else { continue };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_lose_none() {
        let text = "the Pod may still run on this machine";
        assert_eq!(wrap(text, 15), ["the Pod may", "still run on", "this machine"]);
        assert_eq!(wrap("a peerpods.confidentialcontainers.org b", 5).len(), 3);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn colours_surround_text_only_where_they_are_wanted() {
        assert_eq!(Paint::none().paint(Style::Red, "x"), "x");
        assert_eq!(Paint { colours: true }.paint(Style::Red, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Paint { colours: true }.paint(Style::Plain, "x"), "x");
    }
}
