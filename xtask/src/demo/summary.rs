//! The table at the end.

use std::fmt::Write as _;

use super::{
    paint::{Paint, Style},
    stories::{Outcome, Story},
};

const HEADINGS: [&str; 4] = ["story", "result", "Pod deleted → VM gone", "Pod deleted → PeerPod released"];

/// A line for each story; of one that failed or was not played nothing but that is known.
pub(super) fn table(paint: Paint, results: &[(Story, Option<Outcome>)]) -> String {
    let rows: Vec<[String; 4]> = results
        .iter()
        .map(|(story, outcome)| match outcome {
            Some(Outcome { machine, release }) => {
                [story.title().to_owned(), "as told".to_owned(), machine.clone(), release.clone()]
            }
            None => [story.title().to_owned(), "FAILED".to_owned(), String::new(), String::new()],
        })
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str()).chain([HEADINGS[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 4] = std::array::from_fn(width);
    let mut table = String::new();
    let mut line = |cells: [&str; 4], style| {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            // Writing to a String cannot fail.
            let _ = write!(text, "  {cell:width$}");
        }
        let _ = writeln!(table, "{}", paint.paint(style, text.trim_end()));
    };
    line(HEADINGS, Style::Dim);
    for ([story, result, machine, release], (_, outcome)) in rows.iter().zip(results) {
        let style = if outcome.is_some() { Style::Plain } else { Style::Red };
        line([story, result, machine, release], style);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let outcome = Outcome { machine: "0.02 s".into(), release: "0.03 s".into() };
        let table = table(Paint::none(), &[(Story::Crash, Some(outcome)), (Story::Running, None)]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].find("as told"), lines[2].find("FAILED"));
        assert_eq!(lines[0].find("result"), lines[1].find("as told"));
    }
}
