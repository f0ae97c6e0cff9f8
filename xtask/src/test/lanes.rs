//! Runs the test binaries, two at a time.
//!
//! Most tests wait for a cluster most of their time, so a second binary uses the processors that the first leaves idle.
//! What a binary prints is shown when it ends, in one piece.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use futures::{StreamExt as _, stream};
use tokio::{process::Command, select, time::interval};

use super::binaries::Binary;
use crate::repository;

/// How many binaries run at a time. Each of the large ones has several clusters.
const LANES: usize = 2;
/// The binaries that take longest begin first. The others follow in the order in which cargo built them.
const LONGEST: [&str; 3] = ["tests/real/main.rs", "tests/in_cluster/main.rs", "xtask/tests/demo.rs"];
/// How often the logs are read to say how far it is.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// Tests that ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: usize,
}

impl Count {
    /// Those of a log of Rust's test harness.
    fn of(log: &str) -> Self {
        let mut count = Self::default();
        for line in log.lines().filter(|line| line.starts_with("test ")) {
            count.passed += usize::from(line.ends_with(" ... ok"));
            count.failed += usize::from(line.ends_with(" ... FAILED"));
        }
        count
    }
}

/// A binary that ended.
struct Outcome {
    name: String,
    log: PathBuf,
    status: ExitStatus,
    took: Duration,
}

/// Runs all of them. Fails if one does, after all have ended.
pub(super) async fn run(mut binaries: Vec<Binary>, progress: &mut Progress) -> Result<()> {
    let logs = repository::root().join("target/test-logs");
    // Logs of binaries that are no more would be counted, too.
    if logs.exists() {
        fs::remove_dir_all(&logs).with_context(|| format!("removing {}", logs.display()))?;
    }
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    binaries
        .sort_by_key(|binary| LONGEST.iter().position(|name| *name == binary.name).unwrap_or(LONGEST.len()));

    let total = binaries.len();
    let mut outcomes = stream::iter(binaries).map(|binary| start(binary, &logs)).buffer_unordered(LANES);
    let mut ticks = interval(COUNT_INTERVAL);
    let (mut ended, mut failed) = (0, Vec::new());
    loop {
        select! {
            outcome = outcomes.next() => {
                let Some(outcome) = outcome.transpose()? else { break };
                show(&outcome)?;
                ended += 1;
                if !outcome.status.success() {
                    failed.push(outcome.name);
                }
            }
            _ = ticks.tick() => {
                let count = count(&logs)?;
                progress.detail(&format!("{ended} of {total} binaries, {} tests passed, {} failed", count.passed, count.failed));
            }
        }
    }
    let count = count(&logs)?;
    writeln!(io::stdout(), "{} passed, {} failed", count.passed, count.failed)?;
    ensure!(failed.is_empty(), "these failed: {}; see above, or in {}", failed.join(", "), logs.display());
    Ok(())
}

/// Runs one, which ends with this program.
async fn start(binary: Binary, logs: &Path) -> Result<Outcome> {
    let Binary { name, command } = binary;
    let log = logs.join(format!("{}.log", name.replace('/', "-")));
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let started = Instant::now();
    let status = Command::from(command)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| format!("running the tests of {name}"))?;
    Ok(Outcome { name, log, status, took: started.elapsed() })
}

fn show(outcome: &Outcome) -> Result<()> {
    let log = read(&outcome.log)?;
    let seconds = outcome.took.as_secs_f64();
    Ok(writeln!(io::stdout(), "\n{} ({seconds:.0} s, {})\n{}", outcome.name, outcome.status, log.trim())?)
}

/// All tests that ended until now.
fn count(logs: &Path) -> Result<Count> {
    let mut sum = Count::default();
    for entry in fs::read_dir(logs).with_context(|| format!("reading {}", logs.display()))? {
        let Count { passed, failed } = Count::of(&read(&entry?.path())?);
        sum.passed += passed;
        sum.failed += failed;
    }
    Ok(sum)
}

/// A test may print anything.
fn read(log: &Path) -> Result<String> {
    let text = fs::read(log).with_context(|| format!("reading {}", log.display()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_ended_are_counted() {
        let log = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored\ntest e ... ok\n\
                   test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Count::of(log), Count { passed: 2, failed: 1 });
    }
}
