//! Shows on standard error what a long step does, how many are left, and how long it takes.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often a running step prints where lines cannot be overwritten.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);
/// How often it prints on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);

/// A number of steps, done one after the other.
///
/// On a terminal the running step has one line that is rewritten. Elsewhere each step prints a line when it starts, one when it ends,
/// and one every 15 s in between.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    done: usize,
    started: Instant,
    step: Option<Step>,
    terminal: bool,
}

#[derive(Debug)]
struct Step {
    what: String,
    started: Instant,
    spoke: Instant,
}

impl Progress {
    /// Begins work of `total` steps.
    pub fn new(total: usize) -> Self {
        Self { total, done: 0, started: Instant::now(), step: None, terminal: io::stderr().is_terminal() }
    }

    /// Ends the running step, if any, and begins the next: `what` it does, as in "building etcd".
    pub fn step(&mut self, what: impl Into<String>) {
        self.end_step();
        let now = Instant::now();
        let step = Step { what: what.into(), started: now, spoke: now };
        self.say(&step, "", Line::Running);
        self.step = Some(step);
    }

    /// Shows how far the running step is, as in "120 of 800 packages". Calls that come too often have no effect.
    pub fn detail(&mut self, detail: &str) {
        let interval = if self.terminal { TERMINAL_INTERVAL } else { PLAIN_INTERVAL };
        let Some(mut step) = self.step.take() else { return };
        if step.spoke.elapsed() >= interval {
            step.spoke = Instant::now();
            self.say(&step, detail, Line::Running);
        }
        self.step = Some(step);
    }

    /// Ends the running step and the whole. Returns the time that it took.
    pub fn finish(mut self) -> Duration {
        self.end_step();
        self.started.elapsed()
    }

    fn end_step(&mut self) {
        if let Some(step) = self.step.take() {
            self.done += 1;
            self.say(&step, "done", Line::Ended);
        }
    }

    fn say(&self, step: &Step, detail: &str, line: Line) {
        let text = line_text(self.done, self.total, &step.what, detail, step.started.elapsed(), line);
        let mut stderr = io::stderr().lock();
        // If standard error is closed, no reader is left.
        let _ = match (self.terminal, line) {
            (true, Line::Running) => write!(stderr, "\r\x1b[2K{text}").and_then(|()| stderr.flush()),
            (true, Line::Ended) => writeln!(stderr, "\r\x1b[2K{text}"),
            (false, _) => writeln!(stderr, "{text}"),
        };
    }
}

impl Drop for Progress {
    /// Ends the line of a failed step, so that the error gets its own line.
    fn drop(&mut self) {
        if self.terminal && self.step.is_some() {
            let _ = writeln!(io::stderr().lock());
        }
    }
}

#[derive(Clone, Copy)]
enum Line {
    Running,
    Ended,
}

fn line_text(done: usize, total: usize, what: &str, detail: &str, elapsed: Duration, line: Line) -> String {
    let number = match line {
        Line::Running => done + 1,
        Line::Ended => done,
    };
    let separator = if detail.is_empty() { "" } else { ": " };
    format!("[{number}/{total}] {what}{separator}{detail} ({:.1} s)", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_step_its_progress_and_the_time() {
        let seconds = Duration::from_millis(2340);
        assert_eq!(
            line_text(1, 3, "building etcd", "4 of 9 packages", seconds, Line::Running),
            "[2/3] building etcd: 4 of 9 packages (2.3 s)"
        );
        assert_eq!(
            line_text(2, 3, "building etcd", "done", seconds, Line::Ended),
            "[2/3] building etcd: done (2.3 s)"
        );
    }
}
