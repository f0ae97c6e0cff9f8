//! The table at the end.

use super::{
    columns::columns,
    paint::{Paint, Style},
    stories::{Outcome, Story},
};

const HEADINGS: [&str; 4] = ["story", "result", "Pod deleted → VM gone", "Pod deleted → PeerPod released"];

/// A line for each story. A story that failed or was not played has only a note of that.
pub(super) fn table(paint: Paint, results: &[(&Story, Option<Outcome>)]) -> String {
    let row = |(story, outcome): &(&Story, Option<Outcome>)| match outcome {
        Some(Outcome { machine, release }) => {
            [story.title.to_owned(), "as told".to_owned(), machine.clone(), release.clone()]
        }
        None => [story.title.to_owned(), "FAILED".to_owned(), String::new(), String::new()],
    };
    let rows: Vec<_> = [HEADINGS.map(str::to_owned)].into_iter().chain(results.iter().map(row)).collect();
    let style = |outcome: &Option<_>| if outcome.is_some() { Style::Plain } else { Style::Red };
    let styles = [Style::Dim].into_iter().chain(results.iter().map(|(_, outcome)| style(outcome)));
    let lines = columns(&rows).into_iter().zip(styles);
    let lines: Vec<_> = lines.map(|(line, style)| paint.paint(style, format!("  {line}"))).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::stories::STORIES;

    #[test]
    fn every_story_has_a_line_and_says_how_it_went() {
        let outcome = Outcome { machine: "0.02 s".into(), release: "0.03 s".into() };
        let table = table(Paint::none(), &[(&STORIES[0], Some(outcome)), (&STORIES[1], None)]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].find("as told"), lines[2].find("FAILED"));
        assert_eq!(lines[0].find("result"), lines[1].find("as told"));
    }
}
