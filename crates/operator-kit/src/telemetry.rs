//! Log lines.
//!
//! They go to standard error, so that what a command prints on standard output can be piped.

use std::io::{IsTerminal, stderr};

use tracing::{Subscriber, level_filters::LevelFilter, warn};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// One JSON object per line
    Json,
    /// Text for people, in colour on a terminal
    #[default]
    Text,
}

/// The variables that choose what a program of this crate name logs, as directives such as `info,my_operator=debug`. The
/// first one that is set counts: `MY_OPERATOR_LOG`, or else `RUST_LOG`.
pub fn filter_variables(program: &str) -> [String; 2] {
    [format!("{}_LOG", program.to_uppercase()), "RUST_LOG".to_owned()]
}

/// The default directives.
pub const DEFAULT_FILTER: &str = "info";

/// The most that some targets may log, as directives: what they log at lower levels holds secrets. [`init`] sees to that, and allows more only
/// to a directive that names the very target. A host with a subscriber of its own must do the same.
///
/// - The client warns of an undecodable answer with the whole answer, which may be all Secrets of a namespace. The error that it returns
///   says what was wrong with it.
/// - A kubeconfig that cannot be read is quoted.
/// - A watch whose credentials cannot be renewed shows the command of the kubeconfig's exec plugin, and what that printed.
pub const WITHOUT_SECRETS: &str =
    "kube_client::client=error,kube_client::config=info,kube_runtime::watcher=info";

/// The same as levels, as a test shows.
const LIMITS: [(&str, LevelFilter); 3] = [
    ("kube_client::client", LevelFilter::ERROR),
    ("kube_client::config", LevelFilter::INFO),
    ("kube_runtime::watcher", LevelFilter::INFO),
];

/// Starts logging to standard error. `program` is the name of the program's crate, for [`filter_variables`]. A host that has
/// a subscriber already keeps its own, which needs [`WITHOUT_SECRETS`].
pub fn init(program: &str, format: LogFormat) {
    let (filter, problem) = filter(program, |name| std::env::var(name).ok());
    let ansi = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // The only failure is that there is a subscriber already, which is the host's.
    let _ = tracing::subscriber::set_global_default(subscriber(format, filter, ansi, stderr));
    if let Some(problem) = problem {
        warn!("{problem}");
    }
}

/// What to log, and the problem with the variable for it: a typing error there must not keep an operator from starting.
fn filter(program: &str, variable: impl Fn(&str) -> Option<String>) -> (Targets, Option<String>) {
    let variables = filter_variables(program);
    let mut given = variables.iter().filter_map(|name| variable(name).map(|text| (name, text)));
    let Some((name, text)) = given.find(|(_, text)| !text.trim().is_empty()) else {
        return (default_filter(), None);
    };
    let directives = || text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    // This crate is a part of the program: directives for the program hold for both.
    let own = directives().filter_map(|directive| directive.strip_prefix(program)?.strip_prefix('='));
    let kit = own.map(|level| format!("{}={level}", env!("CARGO_CRATE_NAME")));
    let all: Vec<_> = kit.chain(directives().map(ToOwned::to_owned)).collect();
    // A directive for spans would be read as the name of a target.
    let parsed = match all.iter().find(|directive| directive.contains('[')) {
        Some(spans) => Err(format!("{spans} is about spans")),
        None => all.join(",").parse().map_err(|error: ParseError| error.to_string()),
    };
    parsed.map_or_else(
        |problem| {
            let problem = format!(
                "{name} is {text:?}, which is not a filter ({problem}); using {DEFAULT_FILTER}: write it as in \
                 info,{program}=debug"
            );
            (default_filter(), Some(problem))
        },
        |filter| (limited(filter), None),
    )
}

/// These directives with the limits of targets that they do not name themselves.
fn limited(chosen: Targets) -> Targets {
    let level = |target: &str| {
        let named = chosen.iter().filter(|(prefix, _)| target.starts_with(prefix));
        let longest = named.max_by_key(|(prefix, _)| prefix.len());
        longest.map_or(chosen.default_level().unwrap_or(LevelFilter::OFF), |(_, level)| level)
    };
    let is_named = |target: &str| chosen.iter().any(|(named, _)| named == target);
    let limits = LIMITS.into_iter().filter(|(target, _)| !is_named(target));
    let limits: Vec<_> = limits.map(|(target, limit)| (target, limit.min(level(target)))).collect();
    chosen.with_targets(limits)
}

fn default_filter() -> Targets {
    // A level's name can be read, as a test shows.
    let default = DEFAULT_FILTER.parse().unwrap_or(LevelFilter::INFO);
    limited(Targets::new().with_default(default))
}

fn subscriber<W>(
    format: LogFormat,
    filter: Targets,
    ansi: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(ansi);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Json => Box::new(registry.with(lines.json().flatten_event(true).with_span_list(false))),
        LogFormat::Text => Box::new(registry.with(lines)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tracing::{debug, info, info_span, trace};

    use super::*;

    const PROGRAM: &str = "my_operator";

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, directives: &str, ansi: bool) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(format, directives.parse().unwrap(), ansi, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let _span = info_span!("reconcile", widget = "ns/one").entered();
            info!(factory = "north", "widget deleted");
            debug!("details");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_is_one_flat_object_per_line() {
        let text = logged(LogFormat::Json, "debug", false);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["message"], "widget deleted");
        assert_eq!(lines[0]["factory"], "north");
        assert_eq!(lines[0]["level"], "INFO");
        assert_eq!(lines[0]["span"]["widget"], "ns/one");
        assert!(lines[0]["timestamp"].as_str().unwrap().ends_with('Z'), "{text}");
    }

    #[test]
    fn text_has_colour_only_where_asked() {
        let plain = logged(LogFormat::Text, "info", false);
        assert!(plain.contains("widget deleted") && plain.contains("widget=\"ns/one\""), "{plain}");
        assert!(!plain.contains("details") && !plain.contains('\u{1b}'), "{plain}");
        assert!(logged(LogFormat::Text, "info", true).contains('\u{1b}'));
    }

    #[test]
    fn what_may_hold_secrets_is_logged_only_if_its_target_is_named() {
        let shown = |given: &str| {
            let (filter, problem) = filter(PROGRAM, |_| Some(given.to_owned()));
            assert_eq!(problem, None);
            let sink = Sink::default();
            let writer = sink.clone();
            let subscriber = subscriber(LogFormat::Text, filter, false, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                warn!(target: "kube_client::client", "a password");
                trace!(target: "kube_client::config", "a password");
                debug!(target: "kube_runtime::watcher", "a password");
                warn!(target: "kube_client::config", "a notice");
            });
            let bytes = sink.0.lock().unwrap().clone();
            let text = String::from_utf8(bytes).unwrap();
            (text.contains("a password"), text.contains("a notice"))
        };
        for given in ["", "info", "trace", "info,kube_client=debug", "debug,kube_runtime=trace"] {
            assert_eq!(shown(given), (false, true), "{given}");
        }
        for given in
            ["info,kube_client::client=warn", "kube_client::config=trace", "info,kube_runtime::watcher=debug"]
        {
            assert_eq!(shown(given), (true, true), "{given}");
        }
    }

    #[test]
    fn a_directive_for_the_program_holds_for_this_crate() {
        let (used, _) = filter(PROGRAM, |_| Some("info,my_operator=debug,other=trace".to_owned()));
        let used = used.to_string();
        for directive in ["info", "my_operator=debug", "operator_kit=debug", "other=trace"] {
            assert!(used.split(',').any(|it| it == directive), "{directive} is not in {used}");
        }
    }

    #[test]
    fn the_operators_own_variable_comes_first_and_a_broken_one_is_named() {
        let filter_of = |own: &str, common: &str| {
            let (filter, problem) = filter(PROGRAM, |name| {
                let text = if name == "MY_OPERATOR_LOG" { own } else { common };
                Some(text.to_owned())
            });
            (filter.to_string(), problem)
        };
        let limits = LIMITS.map(|(target, level)| format!("{target}={level},"));
        assert_eq!(limits.concat(), format!("{WITHOUT_SECRETS},"));
        let with = |level: &str| format!("{}{level}", limits.iter().rev().cloned().collect::<String>());
        assert_eq!(filter_of("debug", "trace"), (with("debug"), None));
        assert_eq!(filter_of("", "trace"), (with("trace"), None));
        assert_eq!(filter_of("", " "), (with("info"), None));
        assert_eq!(filter(PROGRAM, |_| None).0.to_string(), with("info"));
        for broken in
            ["my_operator=loud", "[reconcile]=debug", "info,my_operator[reconcile{widget=\"a\"}]=debug"]
        {
            let (used, problem) = filter_of(broken, "");
            assert_eq!(used, with("info"), "{broken}");
            assert!(problem.unwrap().contains("MY_OPERATOR_LOG"), "{broken}");
        }
    }

    #[test]
    fn spaces_and_commas_between_directives_mean_nothing() {
        let used = |given: &str| filter(PROGRAM, |_| Some(given.to_owned()));
        let plain = used("info,my_operator=debug");
        for given in ["info, my_operator=debug", " my_operator=debug , info", "info,,my_operator=debug,"] {
            let (filter, problem) = used(given);
            assert_eq!((filter.to_string(), problem), (plain.0.to_string(), None), "{given}");
        }
    }
}
