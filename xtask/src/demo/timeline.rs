//! Observations, printed in the order in which they happened, while they happen.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, timeout},
};

use super::{
    fact::{Fact, Observation, Who},
    observers::POLL_INTERVAL,
    paint::{Paint, Style, WIDTH, wrap},
};

/// The time limit of each wait of a story.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long a line is held back for observations of slower observers that belong before it.
const HOLD_BACK: Duration = Duration::from_millis(150);
/// The column at which a line's text starts.
const TEXT_COLUMN: usize = 33;

/// The observations of the present story.
pub(super) struct Timeline {
    observations: Receiver<Result<Observation>>,
    paint: Paint,
    started: Timestamp,
    /// This story's observations. From `told` on they are ordered by time.
    seen: Vec<Observation>,
    told: usize,
}

impl Timeline {
    pub(super) fn new(observations: Receiver<Result<Observation>>, paint: Paint) -> Self {
        Self { observations, paint, started: Timestamp::now(), seen: Vec::new(), told: 0 }
    }

    /// Begins a story. Earlier observations are not part of it.
    pub(super) fn begin(&mut self) {
        self.started = Timestamp::now();
        self.seen.clear();
        self.told = 0;
    }

    /// Prints a command that is about to run.
    pub(super) fn command(&mut self, command: String) {
        self.add(Observation { at: Timestamp::now(), fact: Fact::Command(command) });
    }

    /// Waits until this is observed in this story. Returns its time.
    pub(super) async fn until(&mut self, what: &str, is_it: impl Fn(&Fact) -> bool) -> Result<Timestamp> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = self.seen.iter().find(|observation| is_it(&observation.fact)) {
                return Ok(found.at);
            }
            if Instant::now() >= end {
                bail!("expected within {DEADLINE:?}: {what}; everything that was observed is above");
            }
            self.listen(POLL_INTERVAL).await?;
        }
    }

    /// Observes for this time.
    pub(super) async fn listen_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.listen(POLL_INTERVAL).await?;
        }
        Ok(())
    }

    /// Waits for slow observers, so that everything that has happened is observed and printed.
    pub(super) async fn settle(&mut self) -> Result<()> {
        self.listen_for(HOLD_BACK).await?;
        self.tell(self.seen.len())
    }

    /// The facts of this story so far.
    pub(super) fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.seen.iter().map(|observation| &observation.fact)
    }

    /// Prints a command's output, after everything that happened before.
    pub(super) async fn output(&mut self, text: &str) -> Result<()> {
        self.settle().await?;
        for line in text.trim_end().lines() {
            let line = format!("    {line}");
            writeln!(io::stdout(), "{}", self.paint.paint(Style::Dim, line.trim_end()))?;
        }
        Ok(())
    }

    /// Prints that something is as expected.
    pub(super) fn checked(&self, what: &str) -> Result<()> {
        let mark = self.paint.paint(Style::Green, "✔");
        for (number, line) in wrap(what, WIDTH - 4).iter().enumerate() {
            let mark = if number == 0 { mark.as_str() } else { " " };
            writeln!(io::stdout(), "  {mark} {line}")?;
        }
        Ok(())
    }

    async fn listen(&mut self, time: Duration) -> Result<()> {
        if let Ok(next) = timeout(time, self.observations.recv()).await {
            self.add(next.context("the observers ended")??);
        }
        let cut = Timestamp::now() - SignedDuration::try_from(HOLD_BACK)?;
        let old = self.seen[self.told..].partition_point(|observation| observation.at <= cut);
        self.tell(self.told + old)
    }

    fn add(&mut self, observation: Observation) {
        if observation.at < self.started {
            return;
        }
        let later = self.seen[self.told..].partition_point(|other| other.at <= observation.at);
        self.seen.insert(self.told + later, observation);
    }

    /// Prints everything before this index.
    fn tell(&mut self, end: usize) -> Result<()> {
        let mut stdout = io::stdout().lock();
        for Observation { at, fact } in &self.seen[self.told..end] {
            if let Some((who, text)) = fact.line() {
                write!(stdout, "{}", lines(self.paint, at.duration_since(self.started), who, &text))?;
            }
        }
        self.told = end;
        Ok(stdout.flush()?)
    }
}

/// One observation: the time since the story began, the actor, and the text, with further lines below if it is long.
fn lines(paint: Paint, elapsed: SignedDuration, who: Who<'_>, text: &str) -> String {
    let elapsed = format!("{:>+8.3} s", elapsed.as_secs_f64());
    let name = format!("{:<17}", who.name());
    let mut lines = String::new();
    let mut wrapped = wrap(text, WIDTH - TEXT_COLUMN);
    if matches!(who, Who::Event { .. }) && wrapped.len() > 1 {
        // The line of the condition has the same words, in full.
        wrapped.truncate(1);
        wrapped[0].push('…');
    }
    for (number, text) in wrapped.iter().enumerate() {
        let before = if number == 0 {
            format!("  {}  {}  ", paint.paint(Style::Dim, &elapsed), paint.paint(who.style(), &name))
        } else {
            " ".repeat(TEXT_COLUMN)
        };
        lines.push_str(&before);
        let style = if matches!(who, Who::You) { Style::Bold } else { Style::Plain };
        lines.push_str(&paint.paint(style, text));
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn at(started: Timestamp, milliseconds: i64, name: &str) -> Observation {
        Observation {
            at: started + SignedDuration::from_millis(milliseconds),
            fact: Fact::Command(name.to_owned()),
        }
    }

    #[test]
    fn a_line_has_time_author_and_text_in_columns() {
        let line = lines(
            Paint::none(),
            SignedDuration::from_millis(1042),
            Who::GarbageCollector,
            "deletes PeerPod web",
        );
        assert_eq!(line, "    +1.042 s  garbage collector  deletes PeerPod web\n");
    }

    #[test]
    fn a_long_text_wraps_within_its_column() {
        let text = ["word"; 20].join(" ");
        let lines = lines(Paint::none(), SignedDuration::ZERO, Who::Operator, &text);
        let columns: Vec<_> = lines.lines().map(|line| line.find("word")).collect();
        assert_eq!(columns, [Some(TEXT_COLUMN), Some(TEXT_COLUMN)]);
        assert!(lines.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn a_late_fact_is_sorted_by_time_among_facts_not_yet_shown() {
        let (_sender, receiver) = mpsc::channel(1);
        let mut timeline = Timeline::new(receiver, Paint::none());
        let started = timeline.started;
        for (milliseconds, name) in [(20, "b"), (30, "c"), (10, "a"), (-5, "of the story before")] {
            timeline.add(at(started, milliseconds, name));
        }
        let told = |timeline: &Timeline| timeline.facts().cloned().collect::<Vec<_>>();
        assert_eq!(told(&timeline), ["a", "b", "c"].map(|name| Fact::Command(name.into())));
        timeline.told = 3;
        timeline.add(at(started, 15, "late"));
        assert_eq!(told(&timeline)[3], Fact::Command("late".into()));
    }

    #[tokio::test]
    async fn until_finds_a_fact_that_was_already_seen() {
        let (sender, receiver) = mpsc::channel(1);
        let mut timeline = Timeline::new(receiver, Paint::none());
        let seen = at(timeline.started, 1, "x");
        sender.send(Ok(seen.clone())).await.unwrap();
        for _ in 0..2 {
            assert_eq!(timeline.until("x", |fact| *fact == seen.fact).await.unwrap(), seen.at);
        }
    }

    #[tokio::test]
    async fn an_observer_that_fails_fails_the_story() {
        let (sender, receiver) = mpsc::channel(1);
        let mut timeline = Timeline::new(receiver, Paint::none());
        sender.send(Err(anyhow::anyhow!("the log cannot be read"))).await.unwrap();
        let problem = timeline.until("anything", |_| false).await.unwrap_err();
        assert_eq!(problem.to_string(), "the log cannot be read");
    }
}
