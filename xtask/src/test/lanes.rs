//! Runs the test binaries, several at a time.
//!
//! Most tests wait for a cluster most of their time, so other binaries use the processors that the first leaves idle. How many run at
//! once depends on their weights. Each binary has a log. For a failed one this prints the output of its failed tests, for a passed one
//! its result.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{process::Command, select, time::interval};

use super::binaries::Binary;
use crate::repository;

/// The binary whose tests wait most, many of them for one of a few clusters, and how many of them go at once.
const REAL: &str = "tests/real/main.rs";
const REAL_THREADS: &str = "8";
const IN_CLUSTER: &str = "tests/in_cluster/main.rs";
const SERVICE: &str = "tests/real/main.rs webhook::service";
/// The binaries that compute and wait for nothing. One after another, they take the processor time that all others leave.
const IDLE_TIME: [&str; 3] = ["xtask/tests/public_types.rs", "documentation", "src/lib.rs"];

/// The most that the weights of the binaries that run may sum up to. The two largest binaries fill it: a third beside them makes all
/// slower.
const CAPACITY: usize = 4;
/// The most binaries beside [`SERVICE`]. Its tests allow no request to fail under load.
const MOST_BESIDE_SERVICE: usize = 2;
/// The binaries that take longest begin first. The others follow in the order in which cargo built them.
const LONGEST: [&str; 15] = [
    IDLE_TIME[0],
    IDLE_TIME[1],
    IDLE_TIME[2],
    REAL,
    IN_CLUSTER,
    "xtask/tests/demo.rs",
    SERVICE,
    "examples/podset/tests/cluster/main.rs",
    "xtask/cluster/tests/node.rs",
    "xtask/cluster/tests/cluster.rs",
    "examples/ptemplate/tests/cluster/main.rs",
    "crates/libvirt-client/tests/ssh.rs",
    "xtask/tests/push.rs",
    "xtask/tests/example.rs",
    "xtask/tests/cluster.rs",
];
/// How often to read the logs, to show the progress.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The harness's result of a binary whose tests all passed.
const PASSED: &str = "test result: ok.";

/// The line before the output of failed tests.
const FAILURES: &str = "\nfailures:\n";

/// The most lines, and characters of a line, that the list of failed tests shows of the reason of each.
const REASON_LINES: usize = 8;
const REASON_WIDTH: usize = 300;

/// The state of a log of Rust's test harness.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    passed: usize,
    ignored: usize,
    /// The names of the failed tests, each with why it failed.
    failed: Vec<(String, String)>,
    results: Vec<String>,
}

impl Log {
    /// Reads the log; a test may print anything into it.
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        let mut log = Self::default();
        for line in text.lines() {
            if line.starts_with("test result: ") {
                log.results.push(line.to_owned());
            } else if let Some((name, end)) =
                line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... "))
            {
                match end {
                    "ok" => log.passed += 1,
                    "FAILED" => log.failed.push((name.to_owned(), reason(text, name))),
                    _ => log.ignored += usize::from(end.starts_with("ignored")),
                }
            }
        }
        log
    }

    /// Whether the harness reached its end with success. A test that ends the process may exit with success, too.
    fn is_success(&self) -> bool {
        !self.results.is_empty() && self.results.iter().all(|result| result.starts_with(PASSED))
    }
}

/// The result of a binary.
struct Outcome {
    name: String,
    path: PathBuf,
    status: ExitStatus,
    took: Duration,
}

/// Runs all of them. If one fails, this fails after all have ended.
pub(super) async fn run(mut binaries: Vec<Binary>, progress: &mut Progress) -> Result<()> {
    let logs = repository::root().join("target/test-logs");
    // Logs of binaries that no longer exist would be counted, too.
    if logs.exists() {
        fs::remove_dir_all(&logs).with_context(|| format!("removing {}", logs.display()))?;
    }
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    binaries
        .sort_by_key(|binary| LONGEST.iter().position(|name| *name == binary.name).unwrap_or(LONGEST.len()));

    let total = binaries.len();
    let (mut running, mut outcomes) = (Vec::<String>::new(), FuturesUnordered::new());
    let mut ticks = interval(COUNT_INTERVAL);
    let (mut ended, mut failed) = (0, Vec::new());
    loop {
        while let Some(place) = next(binaries.iter().map(|binary| &*binary.name), &running) {
            let binary = binaries.remove(place);
            running.push(binary.name.clone());
            outcomes.push(start(binary, &logs));
        }
        select! {
            outcome = outcomes.next() => {
                let Some(outcome) = outcome.transpose()? else { break };
                ended += 1;
                running.retain(|name| *name != outcome.name);
                if !show(&outcome)? {
                    failed.push(outcome.name);
                }
            }
            _ = ticks.tick() => {
                let Log { passed, failed, .. } = sum(&logs)?;
                let failed = failed.len();
                progress.detail(&format!("{ended} of {total} binaries, {passed} tests passed, {failed} failed"));
            }
        }
    }
    let Log { passed, ignored, failed: tests, .. } = sum(&logs)?;
    let mut out = io::stdout().lock();
    for (test, reason) in &tests {
        writeln!(out, "FAILED {test}\n{reason}")?;
    }
    writeln!(out, "{passed} passed, {} failed, {ignored} skipped", tests.len())?;
    ensure!(failed.is_empty(), "these failed: {}; see above, or in {}", failed.join(", "), logs.display());
    Ok(())
}

/// How much of the [`CAPACITY`] a binary takes. Each of the large ones has several clusters at once.
fn weight(name: &str) -> usize {
    match name {
        name if IDLE_TIME.contains(&name) => 0,
        REAL | IN_CLUSTER => 2,
        _ => 1,
    }
}

/// The place of the binary to start next: the first that fits beside those that run. `None`: none fits before one of them has ended.
fn next<'a>(mut waiting: impl Iterator<Item = &'a str>, running: &[String]) -> Option<usize> {
    let taken: usize = running.iter().map(|name| weight(name)).sum();
    let service_runs = running.iter().any(|name| name == SERVICE);
    waiting.position(|name| {
        let is_quiet = running.len() <= MOST_BESIDE_SERVICE || !(service_runs || name == SERVICE);
        let idle_time_is_taken = running.iter().any(|it| IDLE_TIME.contains(&&**it));
        let has_turn = !IDLE_TIME.contains(&name) || !idle_time_is_taken;
        taken + weight(name) <= CAPACITY && is_quiet && has_turn
    })
}

/// Runs one binary. It ends with this program, however that ends.
async fn start(binary: Binary, logs: &Path) -> Result<Outcome> {
    let Binary { name, command } = binary;
    let path = logs.join(format!("{}.log", name.replace(['/', ' '], "-")));
    let output = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let started = Instant::now();
    let mut setpriv = Command::new("setpriv");
    // The stack of an error says where it was made, which its text says, too, and hides the texts of the other failures.
    setpriv.env("RUST_BACKTRACE", "0").env_remove("RUST_LIB_BACKTRACE");
    setpriv.args(["--pdeathsig=KILL", "--"]);
    if IDLE_TIME.contains(&&*name) {
        setpriv.args(["nice", "-n", "5"]).env("RUST_TEST_THREADS", "1");
    }
    setpriv.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        setpriv.current_dir(folder);
    }
    if name.starts_with(REAL) {
        setpriv.env("RUST_TEST_THREADS", REAL_THREADS);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => setpriv.env(name, value),
            None => setpriv.env_remove(name),
        };
    }
    let status = setpriv
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .await
        .with_context(|| format!("running the tests of {name}"))?;
    Ok(Outcome { name, path, status, took: started.elapsed() })
}

/// Prints the result of a binary. Returns whether all its tests passed.
fn show(outcome: &Outcome) -> Result<bool> {
    let Outcome { name, path, status, took } = outcome;
    let log = Log::read(path)?;
    let success = status.success() && log.is_success();
    let mut out = io::stdout().lock();
    if !success {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        writeln!(out, "\n{}", failures(&String::from_utf8_lossy(&text)).trim())?;
    }
    writeln!(out, "{name}: {status}, {:.0} s; {}", took.as_secs_f64(), log.results.join("; "))?;
    Ok(success)
}

/// The part of a log about failures, because hundreds of tests may have passed before it. If there is no such part, the process ended
/// early, and this is the whole log.
fn failures(log: &str) -> &str {
    log.find(FAILURES).map_or(log, |start| &log[start..])
}

/// Why this test failed, in a few lines: its error or its panic, without what it printed before.
fn reason(log: &str, test: &str) -> String {
    let output = log.split_once(&format!("\n---- {test} stdout ----\n")).map_or("", |(_, output)| output);
    let output = output.split("\n---- ").next().unwrap_or_default();
    let output = output.split(FAILURES).next().unwrap_or_default();
    let lines: Vec<_> = output.lines().collect();
    let is_reason = |line: &&str| line.starts_with("Error: ") || line.contains(" panicked at ");
    let start = lines.iter().rposition(is_reason).unwrap_or_default();
    let shown = lines[start..].iter().filter(|line| !line.trim().is_empty()).take(REASON_LINES);
    let shown = shown.map(|line| format!("  {}", line.chars().take(REASON_WIDTH).collect::<String>()));
    shown.collect::<Vec<_>>().join("\n")
}

/// All logs until now.
fn sum(logs: &Path) -> Result<Log> {
    let mut sum = Log::default();
    for entry in fs::read_dir(logs).with_context(|| format!("reading {}", logs.display()))? {
        let Log { passed, ignored, failed, results } = Log::read(&entry?.path())?;
        sum.passed += passed;
        sum.ignored += ignored;
        sum.failed.extend(failed);
        sum.results.extend(results);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of these binaries begins, which take so many seconds.
    fn schedule<'a>(binaries: &[(&'a str, u32)]) -> Vec<(&'a str, u32)> {
        let mut waiting = binaries.to_vec();
        let mut running: Vec<(&str, u32)> = Vec::new();
        let (mut begun, mut now) = (Vec::new(), 0);
        loop {
            let names: Vec<_> = running.iter().map(|(name, _)| (*name).to_owned()).collect();
            if let Some(place) = next(waiting.iter().map(|(name, _)| *name), &names) {
                let (name, seconds) = waiting.remove(place);
                begun.push((name, now));
                running.push((name, now + seconds));
            } else if let Some(end) = running.iter().map(|(_, end)| *end).min() {
                now = end;
                running.retain(|(_, end)| *end > now);
            } else {
                assert!(waiting.is_empty(), "{waiting:?} never begin");
                return begun;
            }
        }
    }

    #[test]
    fn nothing_runs_beside_the_two_largest_and_small_binaries_fill_the_room_that_each_leaves() {
        let binaries =
            [(REAL, 700), (IN_CLUSTER, 570), ("demo", 70), (SERVICE, 80), ("a", 50), ("b", 90), ("c", 10)];
        let begun =
            [(REAL, 0), (IN_CLUSTER, 0), ("demo", 570), (SERVICE, 570), ("a", 640), ("b", 650), ("c", 690)];
        assert_eq!(schedule(&binaries), begun);
    }

    #[test]
    fn four_small_binaries_run_at_once_and_a_large_one_waits_for_the_room_of_two() {
        let binaries = [("a", 10), ("b", 20), ("c", 30), (REAL, 70), ("d", 40), ("e", 5)];
        let begun = [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 10), (REAL, 20)];
        assert_eq!(schedule(&binaries), begun);
    }

    #[test]
    fn binaries_that_take_idle_time_run_one_after_another_beside_the_two_largest() {
        let [first, second, third] = IDLE_TIME;
        let binaries = [(first, 200), (second, 50), (third, 90), (REAL, 700), (IN_CLUSTER, 570), ("a", 10)];
        let begun = [(first, 0), (REAL, 0), (IN_CLUSTER, 0), (second, 200), (third, 250), ("a", 570)];
        assert_eq!(schedule(&binaries), begun);
    }

    #[test]
    fn the_tests_of_the_service_begin_beside_two_others_at_most() {
        let binaries = [("a", 10), ("b", 20), ("c", 30), (SERVICE, 70), ("d", 15), ("e", 5)];
        let begun = [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 10), (SERVICE, 15)];
        assert_eq!(schedule(&binaries), begun);
        let two = [REAL, "a"].map(str::to_owned);
        assert_eq!(next([SERVICE].into_iter(), &two), Some(0));
    }

    #[test]
    fn a_log_says_which_tests_ended_how() {
        let text = "\nrunning 4 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, takes long\n\
                    test e - should panic ... ok\ntest result: FAILED. 2 passed; 1 failed\n";
        let log = Log::parse(text);
        assert_eq!((log.passed, log.ignored), (2, 1));
        assert_eq!(log.failed, [("c".to_owned(), String::new())]);
        assert!(!log.is_success());
    }

    #[test]
    fn failures_are_shown_without_passed_tests() {
        let part = "\nfailures:\n\n---- b stdout ----\nError: b\n\n\nfailures:\n    b\n";
        assert_eq!(failures(&format!("test a ... ok\ntest b ... FAILED\n{part}")), part);
        assert_eq!(failures("test a ... ok\n"), "test a ... ok\n");
    }

    #[test]
    fn the_reason_of_a_failure_is_its_error_without_its_output() {
        let text = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nlog of a\nError: waiting\n\nCaused by:\n    late\n\n\
                    ---- b stdout ----\n\nthread 'b' (7) panicked at b.rs:1:\nno\n\n\nfailures:\n    a\n    b\n";
        assert_eq!(reason(text, "a"), "  Error: waiting\n  Caused by:\n      late");
        assert_eq!(reason(text, "b"), "  thread 'b' (7) panicked at b.rs:1:\n  no");
        assert_eq!(reason(text, "c"), "");
    }

    #[test]
    fn a_binary_passes_only_if_its_harness_came_to_an_end() {
        let begun = "running 2 tests\ntest a ... ok\n";
        assert!(!Log::parse(begun).is_success(), "a test ended the process");
        assert!(Log::parse(&format!("{begun}test b ... ok\n{PASSED} 2 passed\n")).is_success());
    }
}
