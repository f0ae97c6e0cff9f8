//! Tables for people *(no client)*.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use anstyle::Style;

use crate::cli::terminal::{BOLD, clean};

/// A table of rows that exist already: its texts are made while it is written.
pub(super) struct Table<'a, T> {
    rows: &'a [T],
    columns: Vec<Column<'a, T>>,
}

struct Column<'a, T> {
    title: &'static str,
    cell: Box<dyn Fn(&'a T) -> Cell<'a> + 'a>,
}

impl<'a, T> Table<'a, T> {
    /// Without columns yet.
    pub(super) fn of(rows: &'a [T]) -> Self {
        Self { rows, columns: Vec::new() }
    }

    /// With one more column.
    pub(super) fn column(self, title: &'static str, cell: impl Fn(&'a T) -> Cell<'a> + 'a) -> Self {
        self.column_if(true, title, cell)
    }

    /// With one more column, if it is shown.
    pub(super) fn column_if(
        mut self,
        is_shown: bool,
        title: &'static str,
        cell: impl Fn(&'a T) -> Cell<'a> + 'a,
    ) -> Self {
        if is_shown {
            self.columns.push(Column { title, cell: Box::new(cell) });
        }
        self
    }

    /// Writes the table. Each text is made twice: first to measure the column, then to write it.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |column: &Column<'a, T>| {
            let widths = self.rows.iter().map(|row| (column.cell)(row).shown().chars().count());
            widths.max().unwrap_or_default().max(column.title.len())
        };
        let mut widths: Vec<_> = self.columns.iter().map(width).collect();
        // Nothing comes after the last column.
        if let Some(last) = widths.last_mut() {
            *last = 0;
        }
        for (column, width) in self.columns.iter().zip(&widths) {
            pad(out, column.title, BOLD, *width)?;
        }
        writeln!(out)?;
        for row in self.rows {
            for (column, width) in self.columns.iter().zip(&widths) {
                let cell = (column.cell)(row);
                pad(out, &cell.shown(), cell.style, *width)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A text and how it looks.
pub(super) struct Cell<'a> {
    text: Cow<'a, str>,
    style: Style,
}

impl<'a> Cell<'a> {
    pub(super) fn styled(text: impl Into<Cow<'a, str>>, style: Style) -> Self {
        Self { text: text.into(), style }
    }

    /// A text that may not be there.
    pub(super) fn maybe(text: Option<impl Into<Cow<'a, str>>>) -> Self {
        Self::from(text.map_or(Cow::default(), Into::into))
    }

    /// A number that may not be known.
    pub(super) fn number(number: Option<impl ToString>) -> Self {
        Self::maybe(number.map(|number| number.to_string()))
    }

    /// The same text that looks like this.
    pub(super) fn with(self, style: Style) -> Self {
        Self { style, ..self }
    }

    fn shown(&self) -> Cow<'_, str> {
        if self.text.is_empty() { "-".into() } else { clean(&self.text) }
    }
}

impl<'a, T: Into<Cow<'a, str>>> From<T> for Cell<'a> {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// Writes a text, and spaces up to the next column, if there is one.
fn pad(out: &mut dyn Write, text: &str, style: Style, width: usize) -> io::Result<()> {
    write!(out, "{style}{text}{style:#}")?;
    if width > 0 {
        let spaces = width.saturating_sub(text.chars().count()) + 2;
        write!(out, "{:spaces$}", "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::BAD;

    #[test]
    fn columns_are_as_wide_as_their_widest_text_and_no_text_steers_the_terminal() {
        let rows = [("a", Some("first")), ("long-é", None), ("b\u{1b}[2J", Some("x\r\ny"))];
        let table = Table::of(&rows)
            .column("NAME", |row| Cell::from(row.0))
            .column_if(false, "HIDDEN", |row| Cell::from(row.0))
            .column("WHAT", |row| Cell::maybe(row.1));
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let shown = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(
            lines,
            ["NAME        WHAT", "a           first", "long-é      -", "b\\u{1b}[2J  x\\r\\ny"]
        );
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut out = Vec::new();
        let table = Table::of(&["yy"]).column("A", |row| Cell::styled(*row, BAD)).column("B", |_| "x".into());
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let red = BAD.render().to_string();
        assert!(text.contains(&format!("{red}yy")), "{text:?}");
        assert_eq!(anstream::adapter::strip_str(&text).to_string(), "A   B\nyy  x\n");
    }
}
