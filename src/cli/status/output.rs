//! Prints reports in the requested format.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, IsTerminal, Write},
};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use terminal_size::{Height, terminal_size};

use super::{
    report::Report,
    text::{self, View},
};
use crate::cli::terminal;

/// How a report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// Tables, in colour on a terminal
    Table,
    /// The same with further columns, and messages as a whole
    Wide,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// Moves the cursor to the first line, and keeps long lines from taking several.
const BEGIN: &str = "\x1b[H\x1b[?7l";

/// Clears the rest of a line, and of the screen.
const END_OF_LINE: &str = "\x1b[K";
const END: &str = "\x1b[J\x1b[?7h";

/// Writes one report.
pub(super) fn print(report: &Report, format: StatusFormat, namespace: Option<&str>) -> io::Result<()> {
    let mut out = BufWriter::new(anstream::stdout().lock());
    write(&mut out, report, format, namespace)?;
    out.flush()
}

/// Writes one of several reports. On a terminal it replaces the one before, with as many lines as fit.
pub(super) fn redraw(report: &Report, format: StatusFormat, namespace: Option<&str>) -> io::Result<()> {
    match (format, terminal_size().filter(|_| io::stdout().is_terminal())) {
        (StatusFormat::Table | StatusFormat::Wide, Some((_, Height(height)))) => {
            let text = drawn(report, format, namespace, AutoStream::choice(&io::stdout()))?;
            io::stdout().write_all(screen(&text, height.into()).as_bytes())?;
            return io::stdout().flush();
        }
        (StatusFormat::Yaml, _) => writeln!(io::stdout(), "---")?,
        (StatusFormat::Table | StatusFormat::Wide, None) => writeln!(io::stdout())?,
        (StatusFormat::Json, _) => {}
    }
    print(report, format, namespace)
}

fn drawn(
    report: &Report,
    format: StatusFormat,
    namespace: Option<&str>,
    colours: ColorChoice,
) -> io::Result<String> {
    let mut drawn = AutoStream::new(Vec::new(), colours);
    write(&mut drawn, report, format, namespace)?;
    String::from_utf8(drawn.into_inner()).map_err(io::Error::other)
}

/// The beginning of a text, as much as a screen of this height shows.
fn screen(text: &str, height: usize) -> String {
    let room = height.max(2) - 1;
    let mut screen = BEGIN.to_owned();
    for line in text.lines().take(room) {
        screen.extend([line, END_OF_LINE, "\r\n"]);
    }
    if let more @ 1.. = text.lines().count().saturating_sub(room) {
        // Writing to a String cannot fail.
        let _ = write!(screen, "… {more} more lines{END_OF_LINE}");
    }
    screen.push_str(END);
    screen
}

fn write(
    out: &mut dyn Write,
    report: &Report,
    format: StatusFormat,
    namespace: Option<&str>,
) -> io::Result<()> {
    match format {
        StatusFormat::Table => text::write(out, report, View { wide: false, namespace }),
        StatusFormat::Wide => text::write(out, report, View { wide: true, namespace }),
        StatusFormat::Json => terminal::json(out, report),
        StatusFormat::Yaml => terminal::yaml(out, report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_shows_the_beginning_and_how_much_more_there_is() {
        let text = "1\n2\n3\n4\n";
        let shown = |height| anstream::adapter::strip_str(&screen(text, height)).to_string();
        assert_eq!(shown(5), "1\r\n2\r\n3\r\n4\r\n");
        assert_eq!(shown(3), "1\r\n2\r\n… 2 more lines");
        assert_eq!(shown(0), "1\r\n… 3 more lines");
    }
}
