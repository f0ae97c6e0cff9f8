//! Measured figures and their targets.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use serde::Serialize;

/// One measured figure.
#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    /// Its target; `None` for information only.
    target: Option<Target>,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Target {
    /// This or less.
    Most(f64),
    /// This or more.
    Least { least: f64 },
    /// Exactly this, for counts.
    Exactly { exactly: f64 },
}

impl Target {
    fn reached_by(self, value: f64) -> bool {
        match self {
            Self::Most(most) => value <= most,
            Self::Least { least } => value >= least,
            Self::Exactly { exactly } => (value - exactly).abs() < 0.5,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(most) => write!(f, "≤ {most}"),
            Self::Least { least } => write!(f, "≥ {least}"),
            Self::Exactly { exactly } => write!(f, "= {exactly}"),
        }
    }
}

/// The figures of one benchmark, in the order in which they were measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    /// Adds a figure with the target `most` or less.
    pub(super) fn at_most(&mut self, name: impl Into<String>, value: f64, unit: &'static str, most: f64) {
        self.0.push(Figure { name: name.into(), value, unit, target: Some(Target::Most(most)) });
    }

    /// Adds a figure with the target `least` or more.
    pub(super) fn at_least(&mut self, name: impl Into<String>, value: f64, unit: &'static str, least: f64) {
        self.0.push(Figure { name: name.into(), value, unit, target: Some(Target::Least { least }) });
    }

    /// Adds a count that should be exactly this.
    pub(super) fn exactly(&mut self, name: impl Into<String>, value: f64, exactly: f64) {
        self.0.push(Figure { name: name.into(), value, unit: "", target: Some(Target::Exactly { exactly }) });
    }

    /// Adds a figure without a target.
    pub(super) fn info(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.0.push(Figure { name: name.into(), value, unit, target: None });
    }

    /// A line for each figure.
    pub(super) fn table(&self) -> String {
        let width = self.0.iter().map(|figure| figure.name.len()).max().unwrap_or_default();
        let mut table = format!("{:width$}  {:>10}  {:>10}\n", "", "measured", "target");
        for Figure { name, value, unit, target } in &self.0 {
            let verdict = target.map_or("", |target| verdict(target.reached_by(*value)));
            let target = target.map(|target| target.to_string()).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{name:width$}  {value:>10.3}  {target:>10}  {unit:6} {verdict}");
        }
        table
    }

    /// The names of the figures that miss their target.
    pub(super) fn missed(&self) -> Vec<&str> {
        let missed = |figure: &&Figure| figure.target.is_some_and(|target| !target.reached_by(figure.value));
        self.0.iter().filter(missed).map(|figure| &*figure.name).collect()
    }

    /// The figures as JSON.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&self).map(|text| text + "\n")
    }
}

/// The value in the middle. Not a number if there is none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The seconds of the one in the middle of these durations, and of the longest one.
pub(super) fn median_and_slowest(durations: &[Duration]) -> [f64; 2] {
    let seconds: Vec<_> = durations.iter().map(Duration::as_secs_f64).collect();
    let slowest = seconds.iter().copied().fold(f64::NAN, f64::max);
    [median(seconds), slowest]
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_targets_are_named() {
        let mut figures = Figures::default();
        figures.at_most("fast", 1.0, "s", 2.0);
        figures.at_most("slow", 3.0, "s", 2.0);
        figures.info("no target", 9.0, "s");
        figures.at_least("often", 3.0, "1/s", 2.0);
        figures.at_least("seldom", 1.0, "1/s", 2.0);
        figures.exactly("as many", 3.0, 3.0);
        figures.exactly("fewer", 2.0, 3.0);
        assert_eq!(figures.missed(), ["slow", "seldom", "fewer"]);
        let table = figures.table();
        let lines: Vec<_> = table.lines().skip(1).map(str::trim_end).collect();
        assert!(
            lines[0].ends_with("reached") && lines[1].ends_with("MISSED") && lines[2].ends_with('s'),
            "{table}"
        );
        assert!(lines[3].ends_with("reached") && lines[4].ends_with("MISSED"), "{table}");
        assert!(lines[5].ends_with("reached") && lines[6].ends_with("MISSED"), "{table}");
    }
}
